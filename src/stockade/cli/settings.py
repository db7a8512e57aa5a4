"""The one configuration file, and the environment above it: read, checked, told apart by origin.

A section is a table of the file, ``[gateway]``, and a model that says what may stand in it. A variable
``STOCKADE_GATEWAY__LISTEN__PORT`` takes the place of ``gateway.listen.port``. Whatever is not understood
is refused with the name of the key: nothing that a person wrote is passed over.
"""

import copy
import difflib
import importlib
import json
import math
import os
import re
import stat
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path, PurePath
from typing import Any, Final

from pydantic import BaseModel, SecretBytes, SecretStr, ValidationError

SECTIONS: Final[Mapping[str, str]] = {
    "broker": "stockade.broker.settings:BrokerSettings",
    "executor": "stockade.executor.service.settings:ExecutorSettings",
    "gateway": "stockade.gateway.settings:GatewaySettings",
}
"""Name, and where its model is."""

_MOST_BYTES = 1024 * 1024
_DEEPEST = 16
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SECRET_NAME = re.compile(r"secret|password|passphrase|token|credential|access_key", re.IGNORECASE)
_USERINFO = re.compile(r"(?<=://)([^/@:\s]*):[^/@\s]*(?=@)")
_NEARLY: Final = 0.75
MASK: Final = "**********"


class SettingsError(Exception):
    """The configuration is refused; the message has a line for each reason."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("\n".join(reasons))
        self.reasons = reasons


@dataclass(frozen=True, slots=True)
class Settings:
    """What was read."""

    sections: Mapping[str, BaseModel]
    origins: Mapping[str, str] = field(default_factory=dict)
    """Dotted key to where its value comes from; what is not here has its default."""

    def origin(self, key: str) -> str:
        """Of a dotted key: the nearest above it counts."""
        while key:
            if key in self.origins:
                return self.origins[key]
            key = key.rpartition(".")[0]
        return "default"


def models(sections: Mapping[str, str] = SECTIONS) -> dict[str, type[BaseModel]]:
    """The models of all sections. Raises ``ImportError`` where the service is not installed."""
    found = {}
    for name, place in sections.items():
        module, _, attribute = place.partition(":")
        found[name] = getattr(importlib.import_module(module), attribute)
    return found


def load(
    path: str | Path | None,
    known: Mapping[str, type[BaseModel]],
    *,
    wanted: typing.Collection[str] = (),
    others: typing.Collection[str] = (),
    environment: Mapping[str, str] = os.environ,
) -> Settings:
    """Read the file and the environment. Raises :class:`SettingsError`.

    ``known``: every section there is. ``wanted``: those that are made even where nothing is said of
    them; the rest is judged, and made, where something is, but ``others``: these are another
    process's, whose secrets this one may not be able to read.
    """
    source = "" if path is None else str(path)
    origins: dict[str, str] = {}
    written, mode = ({}, 0) if path is None else _read(Path(path))
    reasons = _unknown(written, known, source)
    for key, _ in _leaves(written, known):
        origins[key] = source
    # A copy: what the environment says is not what every user can read in the file.
    values = {name: copy.deepcopy(part) for name, part in written.items() if isinstance(part, dict)}
    reasons += _take_environment(values, known, environment, origins)
    if mode & stat.S_IROTH:
        reasons += [
            f"{source}: {key} is a secret, and every user can read the file: chmod 640 {source}"
            for key, value in _leaves(written, known)
            if value and _is_secret(key, value, _annotation(key, known))
        ]
    if reasons:
        raise SettingsError(reasons)
    sections: dict[str, BaseModel] = {}
    for name, model in known.items():
        if name in others or (name not in values and name not in wanted):
            continue
        try:
            # As JSON, and strict: text is taken for a path or a word of a list, never for a number.
            sections[name] = model.model_validate_json(
                json.dumps(values.get(name, {}), default=str), strict=True
            )
        except ValidationError as error:
            reasons += _refusals(name, error, origins, source)
    if reasons:
        raise SettingsError(reasons)
    return Settings(sections, origins)


def effective(settings: Settings) -> Iterator[tuple[str, object, str]]:
    """Dotted key, value and origin of everything that is set, secrets masked."""
    for name, section in settings.sections.items():
        for key, value, annotation in _fields(name, section):
            yield key, _shown(key, value, annotation), settings.origin(key)


# --- the file ---


def _read(path: Path) -> tuple[dict[str, Any], int]:
    """What it says, and its mode."""
    try:
        # Not a pipe, which could be waited for for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - of a descriptor
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise SettingsError([f"{path}: is no regular file"])
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise SettingsError([f"{path}: cannot be read: {error.strerror}"]) from None
    if status.st_mode & stat.S_IWOTH:
        raise SettingsError([f"{path}: every user can write to it: chmod 640 {path}"])
    if len(data) > _MOST_BYTES:
        raise SettingsError([f"{path}: has more than {_MOST_BYTES} bytes"])
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise SettingsError([f"{path}: is not UTF-8"]) from None
    try:
        # With an end of the last line, so that an error in it is told as one in a line.
        return tomllib.loads(text + "\n"), status.st_mode
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError([f"{path}: {_where(text, str(error))}{error}"]) from None


def _where(text: str, message: str) -> str:
    """The key and its table of the line that an error of TOML is about."""
    place = re.search(r"at line ([0-9]+)", message)
    lines = text.rstrip().splitlines()
    lines = lines if place is None else lines[: int(place[1])]
    tables = [line.strip() for line in lines if line.lstrip().startswith("[")]
    table = tables[-1].strip("[] ") if tables else ""
    key = lines[-1].partition("=")[0].strip() if lines and "=" in lines[-1] else ""
    name = ".".join(part for part in (table, key) if part)
    return f"{name}: " if name else ""


# --- what is known ---


def _unknown(
    written: Mapping[str, Any], known: Mapping[str, type[BaseModel]], source: str
) -> list[str]:
    every = sorted(_every(known))
    reasons = []
    for name, part in written.items():
        if name not in known:
            what = "section" if isinstance(part, dict) else "key"
            near = list(known) if isinstance(part, dict) else every
            reasons.append(f"{source}: there is no {what} {name!r}; {_nearest(name, near)}")
        elif not isinstance(part, dict):
            reasons.append(f"{source}: {name} is a section, a table: write [{name}]")
        else:
            reasons += [
                f"{source}: there is no key {key!r}; {_nearest(key, every)}"
                for key in _unknown_keys(name, part, known[name])
            ]
    return reasons


def _unknown_keys(prefix: str, part: object, annotation: object, depth: int = 0) -> Iterator[str]:
    if depth > _DEEPEST:
        return
    if isinstance(part, list):
        inner = _element(annotation)
        for item in part:
            yield from _unknown_keys(prefix, item, inner, depth + 1)
        return
    model = _model(annotation)
    if model is None or not isinstance(part, dict):
        return
    for name, value in part.items():
        if name not in model.model_fields:
            yield f"{prefix}.{name}"
        else:
            yield from _unknown_keys(
                f"{prefix}.{name}", value, model.model_fields[name].annotation, depth + 1
            )


def _every(known: Mapping[str, type[BaseModel]]) -> Iterator[str]:
    """All keys, dotted."""
    for name, model in known.items():
        yield from _keys(name, model)


def _keys(prefix: str, model: type[BaseModel], depth: int = 0) -> Iterator[str]:
    for name, info in model.model_fields.items():
        key = f"{prefix}.{name}"
        yield key
        inner = _model(info.annotation) or _model(_element(info.annotation))
        if inner is not None and depth < _DEEPEST:
            yield from _keys(key, inner, depth + 1)


def _nearest(key: str, every: list[str]) -> str:
    """The sentence that names it: by the whole key, or by its last part in another section."""

    def like(one: str, other: str) -> float:
        return difflib.SequenceMatcher(None, one, other).ratio()

    above, _, last = key.rpartition(".")
    # A name that is nearly right in its own section is likelier than the same in another.
    own = {
        each: like(last, each.rpartition(".")[2]) for each in every if each.startswith(f"{above}.")
    }
    best = max(own, key=lambda each: own[each], default="")
    if own.get(best, 0.0) < _NEARLY:
        best = max(
            every,
            key=lambda each: max(like(key, each), like(last, each.rpartition(".")[2]) - 0.01),
        )
    section, _, name = best.partition(".")
    return f"the nearest is {name} in [{section}]" if name else f"the nearest is [{section}]"


def _bare(annotation: object) -> object:
    """Without what is annotated beside it, and without an optional ``None``."""
    while True:
        origin = typing.get_origin(annotation)
        if origin is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        elif origin in (typing.Union, types.UnionType):
            inner = [one for one in typing.get_args(annotation) if one is not type(None)]
            if len(inner) != 1:
                return annotation
            annotation = inner[0]
        else:
            return annotation


def _model(annotation: object) -> type[BaseModel] | None:
    bare = _bare(annotation)
    return bare if isinstance(bare, type) and issubclass(bare, BaseModel) else None


def _element(annotation: object) -> object:
    """What a list of that is a list of."""
    bare = _bare(annotation)
    if typing.get_origin(bare) in (
        list,
        tuple,
        set,
        frozenset,
        typing.get_origin(typing.Sequence[int]),
    ):
        return (typing.get_args(bare) or (None,))[0]
    return None


def _annotation(key: str, known: Mapping[str, type[BaseModel]]) -> object:
    """Of a dotted key, as far as models go."""
    section, *rest = key.split(".")
    annotation: object = known.get(section)
    for name in rest:
        model = _model(annotation) or _model(_element(annotation))
        if model is None or name not in model.model_fields:
            return None
        annotation = model.model_fields[name].annotation
    return annotation


def _leaves(
    written: Mapping[str, Any], known: Mapping[str, type[BaseModel]]
) -> Iterator[tuple[str, object]]:
    """Dotted key and value of what is no table."""
    stack: list[tuple[str, object]] = [
        (name, part) for name, part in written.items() if name in known
    ]
    while stack:
        key, value = stack.pop()
        if isinstance(value, dict) and value and key.count(".") < _DEEPEST:
            stack += [(f"{key}.{name}", inner) for name, inner in value.items()]
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            yield key, ""
            for item in value:
                if isinstance(item, dict) and key.count(".") < _DEEPEST:
                    stack += [(f"{key}.{name}", inner) for name, inner in item.items()]
        else:
            yield key, value


# --- the environment ---


def _take_environment(
    values: dict[str, Any],
    known: Mapping[str, type[BaseModel]],
    environment: Mapping[str, str],
    origins: dict[str, str],
) -> list[str]:
    reasons = []
    every = sorted(_every(known))
    for variable in sorted(environment):
        head, separator, rest = variable.partition("__")
        section = head.removeprefix("STOCKADE_").lower()
        if not separator or not head.startswith("STOCKADE_") or section not in known:
            continue
        key = ".".join([section, *rest.lower().split("__")])
        annotation = _annotation(key, known)
        if annotation is None or key not in every or not rest.isupper():
            nearest = _nearest(key, every)
            reasons.append(f"{variable} (environment): there is no key {key!r}; {nearest}")
            continue
        try:
            value = _typed(environment[variable], annotation)
        except ValueError as error:
            reasons.append(f"{variable} (environment): {key}: {error}")
            continue
        place = values.setdefault(section, {})
        *parents, last = key.split(".")[1:]
        for name in parents:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                break
        if not isinstance(place, dict):
            reasons.append(f"{variable} (environment): {key}: the file has no table there")
            continue
        place[last] = value
        for other in [other for other in origins if other.startswith(f"{key}.")]:
            del origins[other]
        origins[key] = variable
    return reasons


def _typed(text: str, annotation: object) -> object:
    """A variable's text as what stands in a file: as it is, or TOML where text cannot be meant."""
    bare = _bare(annotation)
    if bare is bool:
        if text not in ("true", "false"):
            raise ValueError("it is neither true nor false")
        return text == "true"
    if bare in (int, float):
        try:
            number = int(text) if bare is int else float(text)
        except ValueError:
            kind = "a whole number" if bare is int else "a number"
            raise ValueError(f"it is not {kind}") from None
        if not math.isfinite(number):
            raise ValueError("it is not a number")
        return number
    if isinstance(bare, type) and issubclass(bare, str | PurePath | Enum | SecretStr | SecretBytes):
        return text
    if typing.get_origin(bare) is typing.Literal and all(
        isinstance(choice, str) for choice in typing.get_args(bare)
    ):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        raise ValueError('it is no value of TOML, such as ["a", "b"]') from None


# --- refusals and what is shown ---


def _refusals(
    section: str, error: ValidationError, origins: Mapping[str, str], source: str
) -> list[str]:
    reasons = []
    for one in error.errors(include_url=False, include_input=False):
        names = [str(part) for part in one["loc"] if not isinstance(part, int)]
        key = ".".join([section, *names])
        above = key
        while above and above not in origins:
            above = above.rpartition(".")[0]
        origin = origins.get(above, source)
        place = f"{origin} (environment)" if origin.startswith("STOCKADE_") else origin
        message = one["msg"].removeprefix("Value error, ")
        # A message of the section's own may begin with the key already.
        said = (
            message
            if message.startswith(f"{names[-1]}:" if names else "\0")
            else f"{key}: {message}"
        )
        reasons.append(f"{place}: {said}" if place else said)
    return reasons


def _fields(
    prefix: str, section: BaseModel, depth: int = 0
) -> Iterator[tuple[str, object, object]]:
    for name, info in type(section).model_fields.items():
        key, value = f"{prefix}.{name}", getattr(section, name)
        if isinstance(value, BaseModel) and depth < _DEEPEST:
            yield from _fields(key, value, depth + 1)
        else:
            yield key, value, info.annotation


def _shown(key: str, value: object, annotation: object) -> object:
    """As TOML could have it. What is a secret by its type, or by its name, is not shown."""
    match value:
        case SecretStr() | SecretBytes():
            return MASK if value.get_secret_value() else ""
        case BaseModel():
            return {
                name: _shown(f"{key}.{name}", inner, type(value).model_fields[name].annotation)
                for name in type(value).model_fields
                if (inner := getattr(value, name)) is not None
            }
        case Mapping():
            return {
                str(name): _shown(f"{key}.{name}", inner, None) for name, inner in value.items()
            }
        case Enum():
            return value.value
        case str() if _is_secret(key, value, annotation):
            masked = _USERINFO.sub(rf"\1:{MASK}", value)
            return masked if masked != value else MASK
        case bool() | int() | float() | str() | None:
            return value
        case set() | frozenset():
            return sorted((_shown(key, item, None) for item in value), key=str)
        case list() | tuple():
            return [_shown(key, item, None) for item in value]
    return str(value)


def _is_secret(key: str, value: object, annotation: object) -> bool:
    bare = _bare(annotation)
    if isinstance(bare, type) and issubclass(bare, SecretStr | SecretBytes):
        return True
    if isinstance(bare, type) and not issubclass(bare, str):
        return False  # a path to one is none
    if not isinstance(value, str) or not value:
        return False
    return bool(_USERINFO.search(value) or _SECRET_NAME.search(key.rpartition(".")[2]))


def spelled(value: object) -> str:
    """A value as TOML has it."""
    match value:
        case dict():
            pairs = ", ".join(f"{_name(name)} = {spelled(inner)}" for name, inner in value.items())
            return f"{{ {pairs} }}" if pairs else "{}"
        case list():
            return f"[{', '.join(spelled(item) for item in value)}]"
        case str():
            return '"' + "".join(map(_letter, value)) + '"'
        case float():
            return repr(value)
    return json.dumps(value)


def _letter(letter: str) -> str:
    """Nothing in a value steers the terminal that it is shown on."""
    if letter in '"\\':
        return f"\\{letter}"
    return letter if letter.isprintable() else f"\\U{ord(letter):08x}"


def _name(name: str) -> str:
    return name if _BARE.fullmatch(name) else spelled(name)

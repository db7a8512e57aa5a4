"""An egress policy as a file: TOML, or JSON."""

import difflib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from stockade.port.egress import PROFILES, EgressPolicy, EgressRule
from stockade.port.errors import InvalidRequest

MAX_BYTES: Final = 1024 * 1024
_KEYS: Final = (*(each.name for each in fields(EgressPolicy)), "profiles")


def read_policy_file(path: Path) -> EgressPolicy:
    """Read it. Raises :class:`InvalidRequest`, and ``OSError`` for a file that is not there."""
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InvalidRequest("egress", f"{path} has over {MAX_BYTES} bytes")
    try:
        return parse_policy(data.decode("utf-8"), is_json=path.suffix.lower() == ".json")
    except UnicodeDecodeError:
        raise InvalidRequest("egress", f"{path} is not UTF-8") from None
    except InvalidRequest as error:
        raise InvalidRequest("egress", f"{path}: {str(error).removeprefix('egress: ')}") from None


def parse_policy(text: str, *, is_json: bool = False) -> EgressPolicy:
    """Read a policy's text. Raises :class:`InvalidRequest`."""
    try:
        content: Any
        if is_json:
            content = json.loads(text, object_pairs_hook=_without_doubles)
        else:
            content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        kind = "JSON" if is_json else "TOML"
        raise InvalidRequest("egress", f"is not {kind}: {error}") from None
    if not isinstance(content, dict):
        raise InvalidRequest("egress", "is not an object with rules in it")
    return policy_of(content)


def policy_of(content: Mapping[str, Any]) -> EgressPolicy:
    """A policy from what a file has in it. Raises :class:`InvalidRequest`."""
    for key in content:
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key), _KEYS, n=1, cutoff=0.0)
            raise InvalidRequest("egress", f"{key!r} is unknown; the nearest is {near[0]!r}")
    values = dict(content)
    rules = [EgressRule.parse(each) for each in _texts("rules", values.pop("rules", []))]
    for name in _texts("profiles", values.pop("profiles", [])):
        if name not in PROFILES:
            known = ", ".join(PROFILES)
            raise InvalidRequest("egress", f"there is no profile {name!r}; there are: {known}")
        rules += PROFILES[name]
    credentials = tuple(_texts("credentials", values.pop("credentials", [])))
    return EgressPolicy(rules=tuple(rules), credentials=credentials, **values)


def _texts(name: str, value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidRequest("egress", f"{name} is not a list of texts")
    return value


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key comes twice")
    return found

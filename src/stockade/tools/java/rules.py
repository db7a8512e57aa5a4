"""Which of the JDK's classes and methods a tool's classes may refer to (docs/java.md)."""

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from stockade.port import KIB, InvalidRequest
from stockade.tools.java.files import guest_file

_LARGEST: Final = 64 * KIB
_MOST_NAMES: Final = 1_000
_NAME: Final = re.compile(r"[A-Za-z_$][\w$]*(?:\.[A-Za-z_$][\w$]*)*", re.ASCII)
# A member may be one of several of its name: then its descriptor follows, JVMS 4.3.3.
_MEMBER: Final = re.compile(r"(?:<init>|[A-Za-z_$][\w$]*)(?:\([\w/$;\[]*\)[\w/$;\[]+)?", re.ASCII)
_REFUSED: Final = re.compile(rf"{_NAME.pattern}(?:\([\w/$;\[]*\)[\w/$;\[]+)?", re.ASCII)
_FIELDS: Final = frozenset({"packages", "classes", "members", "refused"})


def check_rules(rules: Mapping[str, object] | None) -> bytes:
    """A tenant's rules together with the default ones, for the verifier.

    ``packages`` stand in place of the default ones; ``classes``, ``members`` and ``refused`` are
    added to them. A class that is granted whole is so although the default has a list of its
    members, or refuses it. Raises :class:`InvalidRequest`.
    """
    given = _checked(rules or {})
    merged = {name: list(value) for name, value in _default().items() if name != "members"}
    members = {name: list(value) for name, value in _default()["members"].items()}
    if "packages" in given:
        merged["packages"] = given["packages"]
    merged["classes"] += given.get("classes", [])
    for name, listed in given.get("members", {}).items():
        members[name] = members.get(name, []) + listed
    granted = {*given.get("classes", []), *given.get("members", {})}
    merged["refused"] = [
        name
        for name in merged["refused"]
        if name not in granted and name.rpartition(".")[0] not in granted
    ] + given.get("refused", [])
    for name in given.get("classes", []):
        members.pop(name, None)
    written = json.dumps({**merged, "members": members}, sort_keys=True).encode()
    if len(written) > _LARGEST:
        raise InvalidRequest("rules", f"{len(written)} bytes exceed {_LARGEST}")
    return written


def _checked(rules: Mapping[str, object]) -> dict[str, Any]:
    if not isinstance(rules, Mapping):
        raise InvalidRequest("rules", "it is no object")
    for name in rules:
        if name not in _FIELDS:
            raise InvalidRequest(
                "rules", f"{ascii(name)[:60]} is no field: {', '.join(sorted(_FIELDS))}"
            )
    checked: dict[str, Any] = {
        field: _names(field, rules[field], _REFUSED if field == "refused" else _NAME)
        for field in ("packages", "classes", "refused")
        if field in rules
    }
    if "members" in rules:
        members = rules["members"]
        if not isinstance(members, Mapping) or len(members) > _MOST_NAMES:
            raise InvalidRequest("rules.members", "it is no object, or too large")
        for name in _names("members", list(members), _NAME):
            checked.setdefault("members", {})[name] = _names(
                f"members.{name}", members[name], _MEMBER
            )
    return checked


def _names(field: str, value: object, form: re.Pattern[str]) -> list[str]:
    if not isinstance(value, list | tuple) or len(value) > _MOST_NAMES:
        raise InvalidRequest(f"rules.{field}", f"it is no list of at most {_MOST_NAMES} names")
    for name in value:
        if not isinstance(name, str) or len(name) > 1_000 or not form.fullmatch(name):
            raise InvalidRequest(
                f"rules.{field}", f"{ascii(name)[:60]} is no name; one is java.util.zip.CRC32"
            )
    return list(value)


@cache
def _default() -> dict[str, Any]:
    rules: dict[str, Any] = json.loads(guest_file("policy.json"))
    return rules

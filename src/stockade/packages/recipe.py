"""What is to be installed, and from where."""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Final, Self
from urllib.parse import urlsplit

from stockade.port import EgressRule, InvalidRequest, Scheme

MOST_BYTES: Final = 1 << 20
"""Of a requirements file, a package.json or a lock file."""
PYTHON_FILE: Final = "requirements.txt"
NODE_FILE: Final = "package.json"
NODE_LOCK: Final = "package-lock.json"


@dataclass(frozen=True, slots=True)
class Indexes:
    """Package indexes. What installs may reach them, and nothing else."""

    python: str = "https://pypi.org/simple"
    python_files: tuple[str, ...] = ("files.pythonhosted.org",)
    """Hosts that the index leads to for the files themselves."""
    node: str = "https://registry.npmjs.org"

    def __post_init__(self) -> None:
        for url in (self.python, self.node):
            _rule(url)
        for host in self.python_files:
            EgressRule(host)

    def rules(self, recipe: "Recipe") -> tuple[EgressRule, ...]:
        """What a recipe needs, by host: a method or a path within TLS would take a broker.

        Publishing to PyPI goes to another host. npm's registry takes packages too, from who has a
        token for it, of which the sandbox has none.
        """
        rules: list[EgressRule] = []
        if recipe.python is not None:
            index = _rule(self.python)
            rules.append(index)
            rules += [EgressRule(host, index.port, index.scheme) for host in self.python_files]
        if recipe.node is not None:
            rules.append(_rule(self.node))
        return tuple(rules)


def _rule(url: str) -> EgressRule:
    try:
        parts = urlsplit(url)
        given = parts.port
    except ValueError as error:  # of a port beyond 65535, or half a bracket
        raise InvalidRequest("packages", f"{url!r}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidRequest("packages", f"{url!r} is not the http or https address of an index")
    if parts.username is not None or parts.password is not None:
        raise InvalidRequest(
            "packages", "an index's address with a password would carry it into the sandbox"
        )
    scheme = Scheme(parts.scheme)
    port = given or (443 if scheme is Scheme.HTTPS else 80)
    return EgressRule(parts.hostname.lower(), port, scheme)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Files as their tools read them: a requirements file, a package.json with or without lock."""

    python: bytes | None = None
    node: bytes | None = None
    node_lock: bytes | None = None
    scripts: bool = False
    """Let packages run code of theirs while they are installed: source distributions of Python's,
    npm's install scripts."""
    indexes: Indexes = field(default_factory=Indexes)

    def __post_init__(self) -> None:
        for name, content in self.files.items():
            if len(content) > MOST_BYTES:
                raise InvalidRequest(
                    "packages", f"{name} has {len(content)} bytes; at most {MOST_BYTES}"
                )
        if self.python is None and self.node is None:
            raise InvalidRequest("packages", f"neither {PYTHON_FILE} nor {NODE_FILE}")
        if self.node_lock is not None and self.node is None:
            raise InvalidRequest("packages", f"{NODE_LOCK} without {NODE_FILE}")

    @property
    def files(self) -> dict[str, bytes]:
        """Name to content of those that there are."""
        every = {PYTHON_FILE: self.python, NODE_FILE: self.node, NODE_LOCK: self.node_lock}
        return {name: content for name, content in every.items() if content is not None}

    def with_scripts(self) -> Self:
        """The same, and packages may run code while they are installed."""
        return type(self)(self.python, self.node, self.node_lock, True, self.indexes)

    def key(self, image: str) -> str:
        """Names the result: the same files, indexes and image give the same, until made anew."""
        parts: dict[str, object] = {
            "version": 1,
            "image": image,
            "scripts": self.scripts,
            "indexes": [self.indexes.python, *self.indexes.python_files, self.indexes.node],
        }
        for name, content in self.files.items():
            parts[name] = hashlib.sha256(content).hexdigest()
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

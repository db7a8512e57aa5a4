"""Ids that were seen, so that none is run twice."""

import hashlib
from collections import deque
from typing import Final

REMEMBERED: Final = 100_000
"""An id is known for as long as it lives, and until so many others have ended after it."""


class SeenIds:
    """Each tenant's own: nobody finds out which ids another one uses."""

    def __init__(self, most: int = REMEMBERED) -> None:
        self._most = most
        self._seen: set[bytes] = set()
        self._ended: deque[bytes] = deque()

    def __repr__(self) -> str:
        return f"<SeenIds {len(self._seen) - len(self._ended)} living, {len(self._ended)} ended>"

    def take(self, tenant: str, identity: str) -> bool:
        """Whether it is new. From now on it is not."""
        key = _key(tenant, identity)
        if key in self._seen:
            return False
        self._seen.add(key)
        return True

    def release(self, tenant: str, identity: str) -> None:
        """Nothing came of it: it may be tried again."""
        self._seen.discard(_key(tenant, identity))

    def end(self, tenant: str, identity: str) -> None:
        """It lives no more."""
        self._ended.append(_key(tenant, identity))
        while len(self._ended) > self._most:
            self._seen.discard(self._ended.popleft())


def _key(tenant: str, identity: str) -> bytes:
    """Short, for there are many. No name has a NUL in it."""
    return hashlib.blake2b(f"{tenant}\0{identity}".encode(), digest_size=16).digest()

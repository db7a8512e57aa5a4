"""Ids that were seen, so that none is run twice."""

from collections import OrderedDict
from typing import Final

REMEMBERED: Final = 100_000
"""An id is known for as long as it lives, and until so many others have come after that."""


class SeenIds:
    """Each tenant's own: nobody finds out which ids another one uses."""

    def __init__(self, most: int = REMEMBERED) -> None:
        self._most = most
        self._living: set[tuple[str, str]] = set()
        self._ended: OrderedDict[tuple[str, str], None] = OrderedDict()

    def take(self, tenant: str, identity: str) -> bool:
        """Whether it is new. From now on it is not."""
        key = (tenant, identity)
        if key in self._living or key in self._ended:
            return False
        self._living.add(key)
        return True

    def release(self, tenant: str, identity: str) -> None:
        """Nothing came of it: it may be tried again."""
        self._living.discard((tenant, identity))

    def end(self, tenant: str, identity: str) -> None:
        """It lives no more."""
        key = (tenant, identity)
        self._living.discard(key)
        self._ended[key] = None
        while len(self._ended) > self._most:
            self._ended.popitem(last=False)

"""Whose call is served next."""

from stockade.executor.pool.shelf import Shelf


class Turns:
    """Tenants take turns, and so do the profiles of each: who has many calls delays no other."""

    def __init__(self) -> None:
        # Dicts for their order: the next one stands first.
        self._tenants: dict[str, dict[Shelf, None]] = {}

    def __repr__(self) -> str:
        return f"<Turns of {len(self._tenants)} tenants>"

    def add(self, shelf: Shelf) -> None:
        """A call waits there."""
        self._tenants.setdefault(shelf.profile.tenant, {})[shelf] = None

    def next(self) -> Shelf | None:
        """The shelf whose turn it is; it keeps the turn until ``rotate``."""
        while self._tenants:
            tenant, shelves = next(iter(self._tenants.items()))
            for shelf in list(shelves):
                if shelf.short:
                    return shelf
                del shelves[shelf]
            del self._tenants[tenant]
        return None

    def rotate(self) -> None:
        """A start was begun for the one whose turn it was."""
        tenant, shelves = next(iter(self._tenants.items()))
        shelf = next(iter(shelves))
        del shelves[shelf]
        shelves[shelf] = None
        del self._tenants[tenant]
        self._tenants[tenant] = shelves

"""The calls that wait for a sandbox, and whose turn it is."""

import asyncio

from stockade.executor.pool.shelf import Call, Shelf


class Queue:
    """Calls of one profile are served in their order.

    Tenants take turns, and so do the profiles of each: who has many calls delays no other.
    """

    def __init__(self) -> None:
        # Dicts for their order: whose turn it is stands first.
        self._turns: dict[str, dict[Shelf, None]] = {}
        self._waiting = 0

    def __repr__(self) -> str:
        return f"<Queue {self._waiting} waiting, {len(self._turns)} tenants>"

    def __len__(self) -> int:
        """How many calls wait."""
        return self._waiting

    def add(self, shelf: Shelf) -> Call:
        """A call that waits from now on."""
        call: Call = asyncio.get_running_loop().create_future()
        shelf.waiting.append(call)
        self._waiting += 1
        self._turns.setdefault(shelf.profile.tenant, {})[shelf] = None
        return call

    def leave(self, shelf: Shelf, call: Call) -> bool:
        """A call waits no more, whatever became of it; whether it did until now."""
        if call not in shelf.waiting:
            return False
        shelf.waiting.remove(call)
        self._waiting -= 1
        return True

    def pop(self, shelf: Shelf) -> Call | None:
        """The profile's call that has waited longest, which waits no more."""
        while shelf.waiting:
            call = shelf.waiting.popleft()
            self._waiting -= 1
            if not call.done():
                return call
        return None

    def next(self) -> Shelf | None:
        """The profile for whose calls a start is to be begun; its turn lasts until ``rotate``."""
        while self._turns:
            tenant, shelves = next(iter(self._turns.items()))
            for shelf in list(shelves):
                if shelf.short:
                    return shelf
                del shelves[shelf]
            del self._turns[tenant]
        return None

    def rotate(self) -> None:
        """A start was begun for the profile whose turn it was."""
        tenant, shelves = next(iter(self._turns.items()))
        shelf = next(iter(shelves))
        del shelves[shelf]
        shelves[shelf] = None
        del self._turns[tenant]
        self._turns[tenant] = shelves

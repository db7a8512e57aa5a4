"""How much of something there is, for all that want some of it."""

from collections.abc import Callable


class NoRoom(Exception):
    """As much is taken as may be; the message says of what."""


class Room:
    """So much of something, out of what a larger room has."""

    def __init__(self, most: int, what: str, within: "Room | None" = None) -> None:
        self._most = most
        self._what = what
        self._within = within
        self.taken = 0

    def __repr__(self) -> str:
        return f"<Room {self.taken} of {self._most} {self._what}>"

    def take(self, amount: int = 1) -> Callable[[], None]:
        """Gives what gives it back, once. Raises :class:`NoRoom`."""
        if self.taken + amount > self._most:
            raise NoRoom(f"{self._what}: {self._most} are taken, the most")
        give_within = self._within.take(amount) if self._within is not None else None
        self.taken += amount
        given = False

        def give_back() -> None:
            nonlocal given
            if given:
                return
            given = True
            self.taken -= amount
            if give_within is not None:
                give_within()

        return give_back

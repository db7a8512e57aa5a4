"""Keeping the beginning and the end of a stream, whatever its length."""

from stockade.port.execution import Captured


class Capture:
    """At most ``limit`` bytes of a stream: its first half-limit and its last half-limit."""

    def __init__(self, limit: int) -> None:
        self._head_limit = (limit + 1) // 2
        self._tail_limit = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def __repr__(self) -> str:
        kept = len(self._head) + min(len(self._tail), self._tail_limit)
        return f"<Capture {kept} kept of {self.total}>"

    def add(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self.total += len(data)
        room = self._head_limit - len(self._head)
        if room:
            self._head += data[:room]
            if len(data) <= room:
                return
            data = data[room:]
        self._tail += data
        # Cut rarely: each cut moves the whole tail.
        if len(self._tail) > 2 * self._tail_limit + 65_536:
            del self._tail[: len(self._tail) - self._tail_limit]

    def captured(self) -> Captured:
        """What was kept so far."""
        cut = max(0, len(self._tail) - self._tail_limit)
        return Captured(bytes(self._head), bytes(self._tail[cut:]), self.total)

"""What the agent's file services say to a stream of frames, after the reference model."""

from .guest_bytes import cut
from .reference_guest import Wire


class ModelAgent:
    """Put and get over files that are kept here; ``frames`` is what it said, per channel.

    Frames go in one by one, because the agent answers each before it looks at the next.
    """

    def __init__(self) -> None:
        self._wire = Wire()
        self._files: dict[str, bytearray] = {}
        self._uploads: dict[int, tuple[bytearray, int]] = {}
        self.frames: dict[int, list[tuple[int, bytes]]] = {}

    def take(self, stream: bytes) -> bool:
        """One frame; false after the last. Raises WireError where it is against the rules."""
        for event in self._wire.receive(stream):
            match event:
                case ("open", int(channel), int(span), str(service), bytes(arguments)):
                    self._on_open(channel, span, service, arguments.decode("latin-1"))
                case ("data", int(channel), bytes(content)):
                    if channel in self._uploads:
                        file, written = self._uploads[channel]
                        file[written : written + len(content)] = content
                        self._uploads[channel] = (file, written + len(content))
                    self._wire.consumed(channel, len(content))
                case ("close", int(channel)) if channel in self._uploads:
                    _, written = self._uploads.pop(channel)
                    self._answer(channel, f'{{"written":{written}}}')
                case ("reset", 0, _):
                    return False
                case ("reset", int(channel), _):
                    self._uploads.pop(channel, None)
        for kind, channel, payload in cut(self._wire.outgoing()):
            self.frames.setdefault(channel, []).append((kind, payload))
        return True

    def _on_open(self, channel: int, span: int, service: str, path: str) -> None:
        if service == "put":
            file = self._files.setdefault(path, bytearray())
            file.clear()
            self._uploads[channel] = (file, 0)
        elif service == "get" and path in self._files:
            content = bytes(self._files[path])
            self._answer(channel, f'{{"size":{len(content)}}}', content)
        elif service == "get":
            self._answer(channel, '{"error":"No such file or directory"}')
        else:
            for number in range(channel, channel + span):
                self._wire.reset(number, "unknown service")

    def _answer(self, channel: int, message: str, content: bytes = b"") -> None:
        self._wire.send(channel, message.encode())
        self._wire.send(channel, content)
        self._wire.close(channel)

"""What one peer may cost."""

from dataclasses import dataclass

from stockade.port import KIB


@dataclass(frozen=True, slots=True)
class Bounds:
    """Ceilings on connections. Those on bodies are the application's, which knows the path."""

    connections: int = 1000
    """At once; one more is told so and left."""
    header_bytes: int = 32 * KIB
    """Of a request's line and headers together."""
    header_seconds: float = 10.0
    """From the connection, or a request's first byte, until its headers are complete."""
    idle_seconds: float = 75.0
    """Between two requests on one connection: longer than a client keeps one, or it dies in use."""
    ahead_bytes: int = 64 * KIB
    """Of the requests that a peer sends before the one in front of them is answered."""
    stalled_seconds: float = 60.0
    """For a peer that does not read what it is sent. Within it, it has to take 48 KiB."""
    closing_seconds: float = 5.0
    """For the rest of an answer, once the connection is to be closed."""
    message_bytes: int = 64 * KIB
    """Of one message of a WebSocket."""

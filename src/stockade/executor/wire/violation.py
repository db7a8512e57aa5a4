"""What can go wrong on the wire."""


class WireViolation(Exception):
    """The guest broke the protocol; the message is one sentence that quotes no guest bytes.

    The connection is dead from here on, and the sandbox has to be killed: ``lost``.
    """


class CannotOpen(RuntimeError):
    """The connection has ended, or the guest left too many channels unfinished."""

"""The kinds of boundary."""

from enum import StrEnum


class Tier(StrEnum):
    """A kind of boundary. How strong each is stands in :mod:`stockade.port.policy`."""

    EXPRESSION = "expression"
    """A language that reaches nothing, and whose cost is known before it runs."""
    WASM = "wasm"
    """WebAssembly: the guest has the functions that it was given, and no others."""
    NAMESPACE = "namespace"
    """Linux namespaces and seccomp: the guest speaks to the host's kernel."""
    GVISOR = "gvisor"
    """A kernel in user space: the guest never speaks to the host's."""
    MICROVM = "microvm"
    """A machine of its own: the guest is in a kernel of its own, kept in by the CPU."""
    VM = "vm"
    """A dedicated machine: the same, booted for one job, with a disk of its own, and attested."""

"""What ran one execution: for an auditor who has to say so later."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Attestation:
    """The parts of a dedicated machine, each by a digest of the file that was used.

    The host computed them: of open files, not of names, and before any program ran. Digests are
    ``sha256:`` and hexadecimal.
    """

    image: str
    """Over kernel, initramfs and disk, as in the image's own description."""
    kernel: str
    initramfs: str
    disk: str
    """The read-only root."""
    kernel_version: str
    """Of the kernel's package, in the image's own words."""
    vmm: str
    """As its makers call it."""
    vmm_version: str
    accelerator: str
    """``kvm``: the CPU ran the machine. ``emulation``: software did, which is no boundary."""
    command_line: tuple[str, ...]
    """What the VMM was told, the kernel's own command line included; in place of the numbers of
    open files, what they are."""
    command_line_digest: str
    """Of its words, each with a NUL behind it."""
    vmm_files: Mapping[str, str] = field(default_factory=dict)
    """Path to digest of each file whose code the VMM's process had in its memory: the program,
    its loader, its libraries."""
    firmware: Mapping[str, str] = field(default_factory=dict)
    """Name to digest of what the machine runs before its kernel."""

"""How the tiers honestly differ: what a test may expect of one and not of another.

docs/tiers.md says the same to the reader of the pages. Whatever is not here is the same in
all of them.
"""

from dataclasses import dataclass

from stockade.port import Tier


@dataclass(frozen=True, slots=True)
class Traits:
    """One tier's."""

    always_alive: int
    """Processes below an executor that holds no sandbox."""
    alive_per_sandbox: int
    """And for each that runs a program, at the least. A whole machine is one."""
    shows_guests: bool
    """Each process of a guest is one of the host's. In a kernel of its own it is none."""
    clears_away_later: bool
    """At a record that a program made by ending, killed processes may still be freed."""
    memory_holds_the_kernel: bool
    """Guest and kernel share the ceiling: whoever hits it loses the sandbox."""
    counts_inodes: bool
    """A ceiling on files and folders is kept, and their number is known."""
    opens_own_terminal: bool
    """``/dev/tty`` is the terminal that the program has, if it has one."""
    tells_no_new_privs: bool
    """``/proc/self/status`` has it; it holds in any case."""
    clock_is_the_hosts: bool
    """A guest's own CPU clock is the host's. gVisor's runs on while a busy host lets it wait."""
    cost: int
    """How many times as long a sandbox takes to be made, roughly."""
    next_start_seconds: float
    """How long a session's next program may wait for its interpreter, which counts."""
    slowness: float
    """How many times as long a program takes, at the worst: emulated, where there is no KVM."""

    def seconds(self, seconds: float) -> float:
        """A limit on time before which a program is to come to what it does then."""
        return seconds * self.slowness

    def rounds(self, count: int) -> int:
        """How often to do what may fail now and then, within a time to be waited for."""
        return count // self.cost


TRAITS = {
    Tier.NAMESPACE: Traits(
        always_alive=2,  # the launcher and the warm interpreter
        alive_per_sandbox=2,  # its first process and the program
        shows_guests=True,
        clears_away_later=False,
        memory_holds_the_kernel=False,
        counts_inodes=True,
        opens_own_terminal=True,
        tells_no_new_privs=True,
        clock_is_the_hosts=True,
        cost=1,
        next_start_seconds=0.1,
        slowness=1.0,
    ),
    Tier.GVISOR: Traits(
        always_alive=0,
        alive_per_sandbox=2,
        shows_guests=False,
        clears_away_later=True,
        memory_holds_the_kernel=True,
        counts_inodes=False,
        opens_own_terminal=False,
        tells_no_new_privs=False,
        clock_is_the_hosts=False,
        cost=5,
        next_start_seconds=1.5,
        slowness=1.0,
    ),
    Tier.MICROVM: Traits(
        always_alive=0,
        alive_per_sandbox=1,
        shows_guests=False,
        clears_away_later=True,
        memory_holds_the_kernel=False,
        counts_inodes=True,
        opens_own_terminal=True,
        tells_no_new_privs=True,
        clock_is_the_hosts=False,
        cost=10,
        next_start_seconds=8.0,
        slowness=6.0,
    ),
    Tier.VM: Traits(
        always_alive=0,
        alive_per_sandbox=1,
        shows_guests=False,
        clears_away_later=True,
        memory_holds_the_kernel=False,
        counts_inodes=True,
        opens_own_terminal=True,
        tells_no_new_privs=True,
        clock_is_the_hosts=False,
        cost=20,
        next_start_seconds=8.0,
        slowness=6.0,
    ),
}

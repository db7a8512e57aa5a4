"""The battery: every attack, what it tries, and what its judge expects. Data only.

Numbers are those of the list of demands that the security page of the documentation keeps.
"""

from dataclasses import replace

from stockade.cli.attack import wire
from stockade.cli.attack.drive import alone, cancelled, fetched, hurried, pair, unread
from stockade.cli.attack.model import SMALL, Attack, Difference
from stockade.executor.gvisor.tier import KERNEL_BYTES
from stockade.port import MIB, Limits, Outcome, TerminalSize, Tier
from stockade.port.policy import OWN_KERNEL

_OK = frozenset({Outcome.OK})
_CLOCK = frozenset({Outcome.WALL_CLOCK})
_LITTLE_MEMORY = replace(SMALL, open_files=1024, memory_bytes=48 * MIB)
_PATIENT = replace(SMALL, wall_seconds=60, open_files=1024)
_NO_PROXY = "without the boundary there is no proxy"
_LINKS = (
    "absolute", "relative", "chained", "looped", "folder/passwd", "proc", "device", "sibling",
    "deep/up/real",
)  # fmt: skip
_NAMES = (
    "a\nnewline", "invalid-\udcff\udcfe", "n" * 255, "-rf", "right\u202eleft", "con",
    "caf\u00e9", "cafe\u0301", "tab\tand\x1b[31mescape", "space and ;$(id)", "\\..\\x",
)  # fmt: skip


def _in_gvisor(why: str, **changes: object) -> dict[Tier, Difference]:
    return {Tier.GVISOR: Difference(why, changes)}


def _in_machines(why: str, **changes: object) -> dict[Tier, Difference]:
    return dict.fromkeys((Tier.MICROVM, Tier.VM), Difference(why, changes))


def _with_its_kernel(memory_bytes: int) -> dict[Tier, Difference]:
    return _in_gvisor(
        f"one ceiling for the guest and gVisor's kernel, which is given {KERNEL_BYTES >> 20} MiB",
        most=memory_bytes + KERNEL_BYTES,
    )


def _of_memory(limits: Limits) -> dict[Tier, Difference]:
    return {
        **_with_its_kernel(limits.memory_bytes),
        **_in_machines(
            "the guest's own kernel counts; it takes its time where software plays the machine",
            limits=replace(limits, wall_seconds=60, cpu_seconds=55),
        ),
    }


def _bytes(name: str) -> bytes:
    return b"content of " + name.encode("utf-8", "surrogateescape")


_PROGRAMS: tuple[Attack, ...] = (
    # Processes and time.
    Attack(
        "fork-bomb", (25, 69), "forks without end, in every process",
        frozenset({Outcome.WALL_CLOCK, Outcome.PROCESSES}), alone, "fork_bomb",
        limits=replace(SMALL, wall_seconds=2), most=SMALL.processes + 2,
        differs=_in_gvisor(
            "what gVisor's kernel needs for processes is memory of the guest's",
            outcomes=frozenset({Outcome.WALL_CLOCK, Outcome.PROCESSES, Outcome.MEMORY}),
        ),
    ),
    Attack(
        "zombies", (69,), "leaves 10,000 dead children unburied",
        frozenset({Outcome.PROCESSES}), alone, "zombies",
        limit="processes", most=SMALL.processes,
    ),
    Attack(
        "spin", (68,), "computes without end, in two processes",
        frozenset({Outcome.CPU_TIME}), alone, "spin",
        limits=replace(SMALL, wall_seconds=3, cpu_seconds=0.5), limit="cpu_seconds", most=0.8,
        most_used=0.8, enforced="cpu_seconds",
        differs={
            **_in_gvisor("the host's clock counts, not that of gVisor's kernel", most=None),
            **_in_machines(
                "the host's clock counts, not the guest's, by which a machine that waits computes",
                limits=replace(SMALL, wall_seconds=20, cpu_seconds=3), most=None, most_used=3.3,
            ),
        },
    ),
    Attack(
        "sleep", (70,), "sleeps past its deadline", _CLOCK, alone, "sleep",
        limits=replace(SMALL, wall_seconds=1), limit="wall_seconds", most=2,
    ),
    Attack(
        "stop-itself", (70,), "stops itself with SIGSTOP until after its deadline",
        _CLOCK, alone, "stop_itself",
        limits=replace(SMALL, wall_seconds=1), limit="wall_seconds", most=2,
    ),
    Attack(
        "daemon", (24,), "leaves a daemon: forked twice, own session, deaf to signals",
        _OK, alone, "daemon", attempts=1, watched="processes",
    ),
    Attack(
        "ignore-signals", (24,), "ignores and blocks every signal when it is told to end",
        frozenset({Outcome.CANCELLED}), cancelled, "ignore_signals", watched="processes",
    ),
    Attack(
        "priority", (68,), "asks for real-time and other priorities, and slows the agent down",
        _OK, alone, "priority", attempts=9,
        differs=_in_gvisor(
            "a nice value is a number of gVisor's kernel, which the host's never hears of",
            attempts=8,
        ),
    ),
    # Memory.
    Attack(
        "memory-one-process", (67,), "one process fills memory",
        frozenset({Outcome.MEMORY}), alone, "memory_one_process",
        limit="memory_bytes", most=SMALL.memory_bytes, enforced="memory_bytes",
        differs=_of_memory(SMALL),
    ),
    Attack(
        "memory-many-processes", (67,), "eight processes fill memory, each below the ceiling",
        frozenset({Outcome.MEMORY}), alone, "memory_many_processes",
        limit="memory_bytes", most=SMALL.memory_bytes, enforced="memory_bytes",
        differs=_of_memory(SMALL),
    ),
    Attack(
        "memory-memfd", (67,), "fills files without a name",
        frozenset({Outcome.MEMORY}), alone, "memory_memfd",
        limit="memory_bytes", most=SMALL.memory_bytes, enforced="memory_bytes",
        differs=_of_memory(SMALL),
    ),
    Attack(
        "memory-kernel", (67,), "fills the buffers of sockets and pipes",
        frozenset({Outcome.MEMORY, Outcome.OK, Outcome.OPEN_FILES}), alone, "memory_kernel",
        limits=_LITTLE_MEMORY, most=_LITTLE_MEMORY.memory_bytes,
        enforced="memory_bytes", differs=_of_memory(_LITTLE_MEMORY),
    ),
    Attack(
        "sysv-ipc", (19,), "makes shared memory, semaphores and queues that outlive it",
        _OK, alone, "sysv_ipc", attempts=4,
    ),
    # Files.
    Attack(
        "disk-fill", (39,), "fills every place it can write to",
        frozenset({Outcome.DISK}), alone, "disk_fill",
        limit="disk_bytes", most=SMALL.disk_bytes,
    ),
    Attack(
        "deleted-files", (39,), "fills the disk with files that have no name any more",
        frozenset({Outcome.DISK}), alone, "deleted_files",
        limit="disk_bytes", most=SMALL.disk_bytes,
    ),
    Attack(
        "inode-fill", (39,), "makes empty files without end",
        frozenset({Outcome.INODES}), alone, "inode_fill",
        ("3000",), limits=replace(SMALL, inodes=1000), limit="inodes", most=1000,
        differs=_in_gvisor(
            "gVisor counts no inodes; they are memory of its kernel, which is counted",
            outcomes=frozenset({Outcome.MEMORY, Outcome.WALL_CLOCK}),
            arguments=("10000000",), limits=replace(SMALL, memory_bytes=32 * MIB),
            limit="", most=None, watched="how it ends",
        ),
    ),
    Attack(
        "open-files", (40,), "opens files without end",
        frozenset({Outcome.OPEN_FILES}), alone, "open_files",
        limits=replace(SMALL, open_files=64), limit="open_files", most=64,
    ),
    Attack(
        "deep-tree", (44,), "leaves 4,096 levels of folders, 2,000 links and a closed folder",
        _OK, alone, "deep_tree", attempts=1, watched="files",
        no_control="nothing is deleted file by file, so there is nothing to compare with",
    ),
    # Output.
    Attack(
        "endless-stdout", (71,), "writes on standard output without end",
        frozenset({Outcome.OUTPUT}), alone, "endless_output", ("1",), limit="output_bytes",
    ),
    Attack(
        "endless-stderr-unread", (71,), "writes on standard error, which nobody reads",
        frozenset({Outcome.OUTPUT, Outcome.WALL_CLOCK}), unread, "endless_output", ("2",),
        limits=replace(SMALL, wall_seconds=1), watched="the executor's memory",
        no_control="a plain process waits at a full pipe, too; what is judged is its deadline",
    ),
    Attack(
        "one-long-line", (71,), "writes one line of a gigabyte",
        frozenset({Outcome.OUTPUT}), alone, "one_long_line", ("1",), limit="output_bytes",
    ),
    Attack(
        "result-of-a-gigabyte", (71, 72), "writes a gigabyte as its result",
        frozenset({Outcome.OUTPUT}), alone, "one_long_line", ("3",), limit="result_bytes",
        no_control="a plain process has no result channel",
    ),
    Attack(
        "forged-frames", (77, 78), "writes frames and fake endings on every descriptor",
        frozenset({Outcome.NONZERO_EXIT}), alone, "forged_frames", attempts=2, exit_code=7,
    ),
    # Other processes.
    Attack(
        "signal-agent", (24,), "sends every signal to the agent, and to all at once",
        _OK, alone, "signal_agent", attempts=2,
    ),
    Attack(
        "limits-of-agent", (12,), "sets the agent's limits, and lifts its own",
        _OK, alone, "limits_of_agent", attempts=9,
        differs={
            tier: Difference("the host counts CPU time: there is no RLIMIT_CPU", {"attempts": 8})
            for tier in OWN_KERNEL
        },
    ),
    Attack(
        "signal-host", (24,), "signals processes of the host by their numbers",
        _OK, alone, "signal_host", attempts=3,
    ),
    Attack(
        "trace", (12,), "traces the agent and a sibling, and takes their memory and descriptors",
        _OK, alone, "trace_agent", attempts=20,
    ),
    # What the host holds.
    Attack(
        "host-files", (31,), "reads the host's secrets, homes, logs and sockets",
        _OK, alone, "host_files", attempts=35,
    ),
    Attack(
        "environment", (23, 84), "collects every environment that it can read",
        _OK, alone, "environment", attempts=2,
    ),
    Attack(
        "environment-of-exec", (23, 84), "the same in an interpreter that was executed anew",
        _OK, alone, "environment", attempts=2, fresh=True,
    ),
    Attack(
        "kernel-files", (7, 23), "reads and sets what the kernel tells of the host",
        _OK, alone, "kernel_files", attempts=40,
        differs=_in_gvisor("what can be read, gVisor's kernel tells of itself"),
    ),
    Attack(
        "host-names", (2, 23), "looks for paths and process numbers of the host",
        _OK, alone, "host_names", attempts=8,
        no_control="outside, the host's names are everywhere",
    ),
    Attack(
        "descriptors", (2,), "uses descriptors that leaked in (CVE-2024-21626)",
        _OK, alone, "descriptors", attempts=30,
    ),
    Attack(
        "descriptors-of-exec", (2,), "the same in an interpreter that was executed anew",
        _OK, alone, "descriptors", attempts=30, fresh=True,
    ),
    Attack(
        "own-executable", (1,), "overwrites the programs that run it (CVE-2019-5736)",
        _OK, hurried, "own_executable", attempts=6, watched="the launcher's digest",
        no_control="programs of the host belong to root, whom no control runs as",
    ),
    Attack(
        "agent-files", (41,), "changes the agent's files",
        _OK, alone, "agent_files", attempts=7,
    ),
    # Network.
    Attack(
        "socket-families", (18,), "opens raw, packet, netlink, vsock, alg and 20 other sockets",
        _OK, alone, "socket_families", attempts=27,
    ),
    Attack(
        "abstract-socket", (16,), "connects to a socket of the host that has no path",
        _OK, alone, "abstract_socket", attempts=3, watched="a socket",
    ),
    Attack(
        "host-loopback", (49,), "connects to services on the host's loopback, by many spellings",
        _OK, alone, "host_loopback", attempts=11, watched="two ports",
    ),
    Attack(
        "metadata", (46, 48, 51), "reaches for metadata services and name servers",
        _OK, alone, "metadata", attempts=40,
    ),
    Attack(
        "proxy-addresses", (46, 47, 48, 49, 53),
        "asks the egress proxy for the host and metadata services, by every spelling",
        _OK, alone, "proxy_addresses", limits=_PATIENT, attempts=420, watched="two ports",
        proxied=True, no_control=_NO_PROXY,
    ),
    Attack(
        "proxy-port", (63,), "takes the port at which the agent listens for the egress proxy",
        _OK, alone, "proxy_port", attempts=8, proxied=True, no_control=_NO_PROXY,
    ),
    Attack(
        "proxy-flood", (64,), "floods the egress proxy with connections, halves and headers",
        _OK, hurried, "proxy_flood", limits=_PATIENT, attempts=2, proxied=True,
        no_control=_NO_PROXY,
    ),
    # The kernel.
    Attack(
        "user-namespaces", (9,), "makes namespaces in which it is root",
        _OK, alone, "user_namespaces", attempts=19,
    ),
    Attack(
        "mounts", (8, 13), "changes mounts, and tries cgroup v1's release agent",
        _OK, alone, "mounts", attempts=19,
    ),
    Attack(
        "device-nodes", (3, 4), "makes device nodes, and looks for stray devices",
        _OK, alone, "device_nodes", attempts=11,
    ),
    Attack(
        "set-id", (21, 22), "gains rights by set-id programs, capabilities or ids",
        _OK, alone, "set_id", attempts=18,
        differs={
            **_in_gvisor("ids are those of gVisor's kernel, none the host's", attempts=16),
            **_in_machines("ids are those of the guest's kernel, none the host's", attempts=17),
        },
    ),
    Attack(
        "core-dump", (7,), "crashes, for a core file or the host's handler",
        _OK, alone, "core_dump", attempts=7,
    ),
    Attack("keyring", (14,), "keeps keys in the kernel", _OK, alone, "keyring", attempts=10),
    Attack(
        "terminal", (15,), "types into terminals",
        _OK, alone, "terminal", attempts=12, terminal=TerminalSize(24, 80),
    ),
    Attack(
        "kernel-surface", (10, 13, 26), "makes calls with much kernel code behind them",
        _OK, alone, "kernel_surface", attempts=26,
    ),
    Attack(
        "foreign-calls", (11,), "enters the kernel as a 32-bit and as an x32 program",
        _OK, alone, "foreign_calls", attempts=4, machines=("x86_64",),
    ),
    # Artefacts.
    Attack(
        "artefact-links", (31,), "leaves links where files are asked for",
        _OK, alone, "artefact_links", attempts=1, artefacts=_LINKS,
    ),
    Attack(
        "artefact-kinds", (35, 36), "leaves a FIFO, a socket, a folder and a hard link",
        _OK, alone, "artefact_kinds", attempts=1,
        artefacts=("fifo", "socket", "folder", "one", "two"),
    ),
    Attack(
        "artefact-sparse", (39,), "leaves 50 GB that take no room",
        _OK, alone, "artefact_sparse", attempts=2, artefacts=("fifty-gigabytes", "largest"),
        come_out={"fifty-gigabytes": b""},
    ),
    Attack(
        "artefact-names", (38,), "leaves names with newlines, escapes, and bytes that are no text",
        _OK, alone, "artefact_names", attempts=1, artefacts=_NAMES,
        come_out={name: _bytes(name) for name in _NAMES},
        no_control="the names must come out; a plain copy lets them, too",
    ),
    Attack(
        "growing-file", (37,), "lets a file grow while it is fetched",
        frozenset({Outcome.CANCELLED}), fetched, "growing_file", ("out",),
        watched="each fetch",
        no_control="a plain read ends somewhere, too; what is judged is that each fetch ends",
    ),
    Attack(
        "swapped-file", (32,), "swaps a file for a link at full speed while it is fetched",
        frozenset({Outcome.CANCELLED}), fetched, "swapped_file", ("out", "folder/out"),
        watched="each fetch",
    ),
    # Two sandboxes.
    Attack(
        "shared-places", (19,), "looks for what another sandbox left",
        _OK, pair, "shared_places", attempts=9,
    ),
    Attack(
        "shared-inodes", (20,), "signals to another sandbox over a file of the image",
        _OK, pair, "shared_inodes", attempts=11,
    ),
)  # fmt: skip

_WIRE: tuple[Attack, ...] = tuple(
    Attack(
        name, (77,), f"a fake guest {tries}", frozenset({Outcome.LOST}), wire.hostile(name),
        watched="the wire",
    )
    for name, (tries, _) in wire.HOSTILE.items()
)  # fmt: skip

BATTERY: tuple[Attack, ...] = (*_PROGRAMS, *_WIRE)

"""The generated filters, run by an interpreter of our own, do what the policy says."""

import struct
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.executor.namespace.native.seccomp import generate, policy

Program = list[tuple[int, int, int, int]]

ARCHITECTURES = {architecture.name: architecture for architecture in policy.ARCHITECTURES}
NUMBERS = generate.read_numbers()
NAMES = {name: {number: call for call, number in table.items()} for name, table in NUMBERS.items()}
ANSWERS = {
    0x7FFF_0000: "ALLOW",
    0x8000_0000: "KILL",
    0x0005_0000: "PRETENDED",
    0x0005_0001: "EPERM",
    0x0005_0026: "ENOSYS",
    0x0005_005D: "EPROTONOSUPPORT",
    0x0005_0061: "EAFNOSUPPORT",
}
I386, ARM = 0x4000_0003, 0x4000_0028

each_architecture = pytest.mark.parametrize("name", ARCHITECTURES)


@dataclass(frozen=True)
class Verdict:
    answer: str
    steps: int
    loads: frozenset[int]


def interpret(program: Program, arch: int, nr: int, args: tuple[int, ...] = (0,) * 6) -> Verdict:
    """Classic BPF as net/core/filter.c runs it on a struct seccomp_data."""
    data = struct.pack("<iIQ6Q", nr if nr < 1 << 31 else nr - (1 << 32), arch, 0, *args)
    accumulator, at, steps, loads = 0, 0, 0, set()
    while True:
        code, jt, jf, k = program[at]
        at, steps = at + 1, steps + 1
        match code:
            case 0x20:  # ld [k]
                assert k % 4 == 0
                accumulator = struct.unpack_from("<I", data, k)[0]
                loads.add(k)
            case 0x54:  # and #k
                accumulator &= k
            case 0x05:  # ja k
                at += k
            case 0x15:  # jeq #k
                at += jt if accumulator == k else jf
            case 0x35:  # jge #k
                at += jt if accumulator >= k else jf
            case 0x45:  # jset #k
                at += jt if accumulator & k else jf
            case 0x06:  # ret #k
                return Verdict(ANSWERS[k], steps, frozenset(loads))
            case _:
                pytest.fail(f"instruction {at - 1}: code {code:#x}")


def run(programs: dict[str, Program], name: str, call: str, *args: int) -> str:
    full = (*args, *(0,) * (6 - len(args)))
    arch = ARCHITECTURES[name].audit_arch
    return interpret(programs[name], arch, NUMBERS[name][call], full).answer


# --- The policy, evaluated a second time and another way --------------------------------

SPELLED = {
    policy.ALLOW: "ALLOW",
    policy.KILL: "KILL",
    policy.PRETENDED: "PRETENDED",
    policy.EPERM: "EPERM",
    policy.ENOSYS: "ENOSYS",
    policy.EPROTONOSUPPORT: "EPROTONOSUPPORT",
    policy.EAFNOSUPPORT: "EAFNOSUPPORT",
}


def holds(test: policy.Test, args: tuple[int, ...]) -> bool:
    word = args[test.argument] if test.wide else args[test.argument] & test.mask
    return (word in test.values) is test.inside


def expected(call: str | None, args: tuple[int, ...]) -> str:
    if call is None:
        return "ENOSYS"
    if any(call in calls.split() for calls in policy.ALLOWED.values()):
        return "ALLOW"
    for denied in policy.DENIED:
        if call in denied.calls.split():
            return SPELLED[denied.answer]
    (rule,) = (rule for rule in policy.RULES if call in rule.calls.split())
    for clause in rule.clauses:
        if all(holds(test, args) for test in clause.tests):
            return SPELLED[clause.answer]
    return SPELLED[rule.otherwise]


# --- Numbers ----------------------------------------------------------------------------


@each_architecture
@pytest.mark.parametrize("word", [0, 1, 0xFFFF_FFFF_FFFF_FFFF])
def test_every_number_gets_the_answer_of_the_policy(
    programs: dict[str, Program], name: str, word: int
) -> None:
    args = (word,) * 6
    for nr in (*range(601), 0xFFFF, 0x3FFF_FFFF):
        verdict = interpret(programs[name], ARCHITECTURES[name].audit_arch, nr, args)
        call = NAMES[name].get(nr)
        assert verdict.answer == expected(call, args), (nr, call)


@pytest.mark.parametrize("bits", [0x4000_0000, 0x8000_0000, 0xC000_0000])
def test_an_x32_number_kills(programs: dict[str, Program], bits: int) -> None:
    x86_64 = ARCHITECTURES["x86_64"].audit_arch
    for nr in (*range(601), 0x3FFF_FFFF):
        assert interpret(programs["x86_64"], x86_64, bits | nr).answer == "KILL"


@pytest.mark.parametrize("nr", [0x4000_0000, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF])
def test_a_number_out_of_range_is_unknown_on_aarch64(programs: dict[str, Program], nr: int) -> None:
    aarch64 = ARCHITECTURES["aarch64"].audit_arch
    assert interpret(programs["aarch64"], aarch64, nr).answer == "ENOSYS"


@each_architecture
def test_a_foreign_instruction_set_kills(programs: dict[str, Program], name: str) -> None:
    others = {0, I386, ARM, 0xC000_003E, 0xC000_00B7} - {ARCHITECTURES[name].audit_arch}
    for arch in others:
        for nr in (*range(601), 0x4000_0000, 0xFFFF_FFFF):
            assert interpret(programs[name], arch, nr).answer == "KILL"


@each_architecture
def test_an_allowed_call_is_decided_by_its_number_alone(
    programs: dict[str, Program], name: str
) -> None:
    """Else the kernel cannot remember the answer and runs the filter at every call."""
    for call, nr in NUMBERS[name].items():
        verdict = interpret(programs[name], ARCHITECTURES[name].audit_arch, nr)
        assert verdict.steps <= 24, call
        if any(call in calls.split() for calls in policy.ALLOWED.values()):
            assert verdict.loads == {0, 4}, call
            assert verdict.steps <= 15, call


@each_architecture
def test_the_filter_stays_small(programs: dict[str, Program], name: str) -> None:
    """Loading it is a cost of every sandbox."""
    assert len(programs[name]) <= 185


@each_architecture
def test_every_instruction_is_of_use(programs: dict[str, Program], name: str) -> None:
    program, reached, waiting = programs[name], set[int](), [0]
    while waiting:
        at = waiting.pop()
        if at not in reached:
            reached.add(at)
            code, jt, jf, k = program[at]
            if code == 0x05:
                waiting.append(at + 1 + k)
            elif code & 0x07 == 0x05:
                waiting += [at + 1 + jt, at + 1 + jf]
            elif code != 0x06:
                waiting.append(at + 1)
    assert reached == set(range(len(program)))


# --- Refusals that no change of the policy may lose -------------------------------------

REFUSED = {
    "EPERM": """
        unshare setns mount umount2 pivot_root chroot open_tree open_tree_attr move_mount
        fsopen fsconfig fsmount fspick mount_setattr statmount listmount swapon swapoff reboot
        kexec_load kexec_file_load init_module finit_module delete_module bpf perf_event_open
        userfaultfd add_key request_key keyctl ptrace process_vm_readv process_vm_writev
        process_madvise pidfd_getfd kcmp name_to_handle_at open_by_handle_at fanotify_init
        fanotify_mark acct quotactl quotactl_fd nfsservctl syslog settimeofday clock_settime
        adjtimex clock_adjtime sethostname setdomainname iopl ioperm modify_ldt shmget shmat
        shmctl shmdt semget semop semctl semtimedop msgget msgsnd msgrcv msgctl mq_open
        mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr mbind set_mempolicy
        set_mempolicy_home_node migrate_pages move_pages vmsplice lookup_dcookie
        sched_setaffinity cachestat sync syncfs
        """,
    "ENOSYS": """
        clone3 io_uring_setup io_uring_enter io_uring_register io_setup io_destroy io_submit
        io_cancel io_getevents io_pgetevents memfd_secret
        """,
}


@each_architecture
@pytest.mark.parametrize("answer", REFUSED)
def test_refusals_are_kept(programs: dict[str, Program], name: str, answer: str) -> None:
    for call in REFUSED[answer].split():
        if call not in ARCHITECTURES[name].absent.split():
            for word in (0, 1, 0xFFFF_FFFF_FFFF_FFFF):
                assert run(programs, name, call, *(word,) * 6) == answer, call


# --- Arguments --------------------------------------------------------------------------

# What each call may do, said as the kernel's own code would, from the arguments as the
# kernel sees them: `int` arguments have lost their upper half.


def socket(family: int, kind: int, protocol: int) -> str:
    if family not in (1, 2, 10):
        return "EAFNOSUPPORT"
    if kind % 16 not in (1, 2, 5) or (kind % 16 == 5 and family != 1):
        return "EPERM"
    return "ALLOW" if family == 1 or protocol in (0, 6, 17) else "EPROTONOSUPPORT"


def mknod(mode: int) -> str:
    return allow_if(mode & 0o170000 in (0, 0o100000, 0o010000, 0o140000))


def allow_if(condition: bool) -> str:
    return "ALLOW" if condition else "EPERM"


Oracle = Callable[..., str]
PID_0 = ("sched_setscheduler", "sched_setparam", "sched_setattr")
ORACLES: dict[str, Oracle] = {
    "clone": lambda flags, *_: allow_if(
        not any(flags >> bit & 1 for bit in (17, 25, 26, 27, 28, 29, 30))
    ),
    "personality": lambda persona, *_: allow_if(persona in (0, 8, 0x20000, 0x20008, 0xFFFF_FFFF)),
    "socket": lambda family, kind, protocol, *_: socket(family, kind, protocol),
    "socketpair": lambda family, *_: "ALLOW" if family == 1 else "EAFNOSUPPORT",
    "setsockopt": lambda _, level, name, *__: allow_if(level != 1 or name not in (26, 50, 51, 52)),
    "ioctl": lambda _, command, *__: allow_if(command not in (0x5412, 0x541C, 0x5423)),
    "fcntl": lambda _, command, *__: allow_if(command not in (1024, 1026, 1036, 1040)),
    "mmap": lambda _, __, ___, flags, *____: allow_if(not flags & 0x40000),
    "memfd_create": lambda _, flags, *__: allow_if(not flags & 0x4),
    "madvise": lambda _, __, advice, *___: allow_if(advice != 12),
    "prctl": lambda option, *_: allow_if(option not in (26, 35, 62, 67)),
    "seccomp": lambda _, flags, *__: allow_if(not flags & 10),
    "mknod": lambda _, mode, *__: mknod(mode),
    "mknodat": lambda _, __, mode, *___: mknod(mode),
    "setrlimit": lambda resource, *_: "PRETENDED" if resource == 4 else "ALLOW",
    "setpriority": lambda which, who, *_: allow_if(which == 0 and who == 0),
    "ioprio_set": lambda which, who, *_: allow_if(which == 1 and who == 0),
    **dict.fromkeys(PID_0, lambda pid, *_: allow_if(pid == 0)),
}


def as_the_kernel_sees(call: str, args: tuple[int, ...]) -> str:
    low = [arg & 0xFFFF_FFFF for arg in args]
    if call == "prlimit64":  # the pointers keep all their bits
        if low[0] == 0 and low[1] == 4 and args[2] != 0:
            return "EPERM" if args[3] else "PRETENDED"
        return allow_if(low[0] == 0)
    return ORACLES[call](*low)


INTERESTING = sorted(
    {value for rule in policy.RULES for clause in rule.clauses for test in clause.tests
     for value in test.values}
    | {1 << bit for bit in range(32)}
    | {3, 5, 7, 9, 11, 16, 17, 30, 38, 40, 0x21B6, 0x61B6, 0x81B6, 0xA1FF, 0xC1FF, 0x1_81B6}
    | {0x80801, 0x80803, 0x8080A, 0x13, 0xFFFF_FFFF, 0x7FFF_FFFF, 0x8000_0000}
)  # fmt: skip
low_halves = (
    st.sampled_from(INTERESTING)
    | st.builds(int.__or__, st.sampled_from(INTERESTING), st.sampled_from(INTERESTING))
    | st.builds(
        lambda value, delta: (value + delta) % (1 << 32),
        st.sampled_from(INTERESTING),
        st.sampled_from([-1, 1]),
    )
    | st.integers(0, (1 << 32) - 1)
)
high_halves = st.sampled_from([0, 0, 0, 1, 0x8000_0000, 0xFFFF_FFFF]) | st.integers(
    0, (1 << 32) - 1
)
words = st.builds(lambda high, low: high << 32 | low, high_halves, low_halves)
arguments = st.tuples(words, words, words, words, words, words)
ruled = sorted(call for rule in policy.RULES for call in rule.calls.split())


def test_every_rule_has_an_oracle() -> None:
    assert {*ORACLES, "prlimit64"} == set(ruled)


@each_architecture
@pytest.mark.parametrize("call", ruled)
@given(args=arguments)
def test_arguments_decide_as_the_kernel_sees_them(
    programs: dict[str, Program], name: str, call: str, args: tuple[int, ...]
) -> None:
    if call in ARCHITECTURES[name].absent.split():
        return
    answer = run(programs, name, call, *args)
    assert answer == expected(call, args)
    assert answer == as_the_kernel_sees(call, args)


@pytest.mark.parametrize(
    ("call", "args", "answer"),
    [
        ("ioctl", (0, 0x5412), "EPERM"),
        # CVE-2019-10063: the kernel drops the upper half of the command.
        ("ioctl", (0, 0x1_0000_5412), "EPERM"),
        ("ioctl", (0, 0xFFFF_FFFF_0000_541C), "EPERM"),
        ("ioctl", (0, 0x5441), "ALLOW"),  # TIOCGPTPEER
        ("clone", (0x1000_0000 | 17,), "EPERM"),  # CLONE_NEWUSER | SIGCHLD
        ("clone", (0x0080_0000 | 17,), "ALLOW"),
        ("clone", (0x003D_0F00,), "ALLOW"),  # a thread of glibc
        ("clone", (0x0120_0011,), "ALLOW"),  # fork of glibc
        ("clone", (0x4111,), "ALLOW"),  # vfork of posix_spawn
        ("personality", (0x0004_0000,), "EPERM"),  # ADDR_NO_RANDOMIZE
        ("socket", (2, 0x80801, 6), "ALLOW"),
        ("socket", (2, 0x80803, 1), "EPERM"),  # SOCK_RAW with flags
        ("socket", (2, 10, 0), "EPERM"),  # SOCK_PACKET
        ("socket", (10, 1, 132), "EPROTONOSUPPORT"),  # SCTP
        ("socket", (16, 3, 0), "EAFNOSUPPORT"),  # AF_NETLINK
        ("socket", (17, 3, 0), "EAFNOSUPPORT"),  # AF_PACKET
        ("socket", (30, 1, 0), "EAFNOSUPPORT"),  # AF_TIPC
        ("socket", (31, 1, 0), "EAFNOSUPPORT"),  # AF_BLUETOOTH
        ("socket", (38, 5, 0), "EAFNOSUPPORT"),  # AF_ALG
        ("socket", (40, 1, 0), "EAFNOSUPPORT"),  # AF_VSOCK
        ("socketpair", (30, 1, 0), "EAFNOSUPPORT"),
        ("prlimit64", (0, 7, 1, 0), "ALLOW"),
        ("prlimit64", (1, 7, 0, 1), "EPERM"),
        ("prlimit64", (0, 4, 0, 1), "ALLOW"),
        ("prlimit64", (0, 4, 0x7FFF_0000_0000, 0), "PRETENDED"),
        ("prlimit64", (0, 4, 0x1000, 0), "PRETENDED"),
        ("prlimit64", (0, 4, 0x1000, 0x7FFF_0000_0000), "EPERM"),
        ("prlimit64", (1, 4, 0x1000, 0), "EPERM"),
        ("setrlimit", (0x1_0000_0004,), "PRETENDED"),
        ("mknodat", (0, 0, 0o020666), "EPERM"),  # a character device, or a whiteout
        ("mknodat", (0, 0, 0o010666), "ALLOW"),  # mkfifo
        ("seccomp", (1, 8), "EPERM"),
        ("seccomp", (1, 1), "ALLOW"),
        ("mmap", (0, 4096, 3, 0x22, 0xFFFFFFFF, 0), "ALLOW"),  # private, anonymous
        ("mmap", (0, 4096, 3, 0x40022, 0xFFFFFFFF, 0), "EPERM"),  # of huge pages
        ("memfd_create", (0, 0x5), "EPERM"),
    ],
)
@each_architecture
def test_known_attacks_and_known_programs(
    programs: dict[str, Program], name: str, call: str, args: tuple[int, ...], answer: str
) -> None:
    assert run(programs, name, call, *args) == answer

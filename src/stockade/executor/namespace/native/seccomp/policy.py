"""What a guest of the namespace tier may ask of the kernel: reviewed data, no code.

Every call that `numbers.json` knows stands here exactly once: in ALLOWED, in DENIED with
the threat it carries, or in RULES with the arguments that decide. `generate.py` refuses
to build a filter while one is missing, so a new kernel's calls wait for a review; until
then a guest gets ENOSYS, as on an older kernel.

Limits that this filter does not lift, because it cannot see behind a pointer or because
the price is too high:

- `flock` and POSIX locks on an image file that two sandboxes share are a channel between
  two guests who both want it: A locks, B tries. Refusing locks breaks sqlite, git and
  apt. Give each sandbox its own overlay of the image, whose inodes are its own.
- The page cache of a shared image can be probed by timing plain reads.
- A guest may add filters of its own and so use up the host's `net.core.bpf_jit_limit`,
  within its ceiling of processes.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """What the kernel does with a call: a return value of the filter."""

    name: str
    value: int


def _errno(name: str, number: int) -> Answer:
    return Answer(name, 0x0005_0000 | number)  # SECCOMP_RET_ERRNO


ALLOW = Answer("ALLOW", 0x7FFF_0000)  # SECCOMP_RET_ALLOW
KILL = Answer("KILL_PROCESS", 0x8000_0000)  # SECCOMP_RET_KILL_PROCESS
EPERM = _errno("EPERM", 1)
# The kernel does nothing, and the program is told that it did: where a refusal would end it,
# and what it wants is so already.
PRETENDED = _errno("PRETENDED", 0)
ENOSYS = _errno("ENOSYS", 38)
EPROTONOSUPPORT = _errno("EPROTONOSUPPORT", 93)
EAFNOSUPPORT = _errno("EAFNOSUPPORT", 97)

# A number that nobody reviewed: the same answer that an older kernel gives.
UNKNOWN = ENOSYS


@dataclass(frozen=True)
class Architecture:
    """One instruction set, with the way into the kernel that its guests must use."""

    name: str
    audit_arch: int  # AUDIT_ARCH_*; any other is a 32-bit or foreign entry: KILL
    kill_from: int | None  # numbers from here on: KILL
    absent: str  # calls of this policy that the architecture never had


ARCHITECTURES = (
    # Bit 30 marks x32, a second table on the same AUDIT_ARCH that would dodge every rule.
    Architecture("x86_64", 0xC000_003E, 0x4000_0000, ""),
    Architecture(
        "aarch64",
        0xC000_00B7,
        None,
        """
        _sysctl access afs_syscall alarm arch_prctl chmod chown creat create_module dup2
        epoll_create epoll_ctl_old epoll_wait epoll_wait_old eventfd fork futimesat
        get_kernel_syms get_thread_area getdents getpgrp getpmsg inotify_init ioperm iopl
        lchown link lstat mkdir mknod modify_ldt open pause pipe poll putpmsg query_module
        readlink rename rmdir security select set_thread_area signalfd stat symlink sysfs
        time tuxcall unlink uprobe uretprobe uselib ustat utime utimes vfork vserver
        """,
    ),
)

ALLOWED: dict[str, str] = {
    "open files and move bytes": """
        open openat openat2 creat close close_range read write readv writev pread64 pwrite64
        preadv pwritev preadv2 pwritev2 lseek sendfile splice tee copy_file_range readahead
        fadvise64 dup dup2 dup3 pipe pipe2
        """,
    "make bytes durable (fsync and its kin reach one file; sync and syncfs are denied)": """
        fsync fdatasync sync_file_range fallocate truncate ftruncate
        """,
    "look at files": """
        stat lstat fstat newfstatat statx statfs fstatfs access faccessat faccessat2 readlink
        readlinkat getdents getdents64 getcwd
        """,
    "change the tree": """
        mkdir mkdirat rmdir link linkat symlink symlinkat unlink unlinkat rename renameat
        renameat2 chdir fchdir chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat
        umask utime utimes futimesat utimensat
        """,
    "extended attributes": """
        setxattr lsetxattr fsetxattr setxattrat getxattr lgetxattr fgetxattr getxattrat
        listxattr llistxattr flistxattr listxattrat removexattr lremovexattr fremovexattr
        removexattrat
        """,
    "advisory locks (a limit: see above)": "flock",
    "wait for events": """
        poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait
        epoll_pwait2 eventfd eventfd2 signalfd signalfd4 timerfd_create timerfd_settime
        timerfd_gettime
        """,
    "memory": """
        munmap mprotect mremap msync mincore brk mlock mlock2 munlock mlockall munlockall
        pkey_alloc pkey_free pkey_mprotect map_shadow_stack mseal get_mempolicy
        membarrier
        """,
    "start and end processes and threads": """
        fork vfork execve execveat exit exit_group wait4 waitid set_tid_address
        set_robust_list get_robust_list rseq rseq_slice_yield arch_prctl pidfd_open
        pidfd_send_signal
        """,
    # Called by the kernel's own trampoline in a traced function, and by nobody else.
    "breakpoints that the host's administrator set": "uretprobe uprobe",
    "threads wait for one another": """
        futex futex_waitv futex_wake futex_wait futex_requeue
        """,
    "signals": """
        rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigsuspend rt_sigtimedwait
        rt_sigqueueinfo rt_tgsigqueueinfo sigaltstack kill tkill tgkill pause restart_syscall
        """,
    "read clocks, sleep, timers": """
        time gettimeofday clock_gettime clock_getres nanosleep clock_nanosleep alarm getitimer
        setitimer timer_create timer_settime timer_gettime timer_getoverrun timer_delete times
        """,
    "who am I": """
        getpid getppid gettid getpgid getpgrp getsid setpgid setsid getuid geteuid getgid
        getegid getresuid getresgid getgroups capget
        """,
    # No capability and one mapped id: these succeed only where they change nothing or narrow.
    "ids (programs drop rights by habit)": """
        setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups capset
        """,
    "what the machine offers": """
        uname sysinfo getcpu getrandom getrusage getrlimit getpriority ioprio_get
        sched_getaffinity sched_getattr sched_getparam sched_getscheduler
        sched_get_priority_max sched_get_priority_min sched_rr_get_interval sched_yield
        """,
    # socket() decides the families; on a socket that exists all of these are safe.
    "sockets": """
        connect bind listen accept accept4 shutdown getsockname getpeername getsockopt sendto
        recvfrom sendmsg recvmsg sendmmsg recvmmsg
        """,
    "a guest confines itself further": """
        landlock_create_ruleset landlock_add_rule landlock_restrict_self
        """,
}


@dataclass(frozen=True)
class Denied:
    """Calls that every guest is refused, and what a guest could do with them."""

    calls: str
    threat: str
    answer: Answer = EPERM


DENIED: tuple[Denied, ...] = (
    # Answered as if the kernel did not have them: programs then take their older way.
    Denied(
        "clone3",
        "makes namespaces, and its flags lie behind a pointer where no filter can look",
        ENOSYS,
    ),
    Denied(
        "io_uring_setup io_uring_enter io_uring_register",
        "does file and socket calls that no filter sees, AF_VSOCK sockets among them",
        ENOSYS,
    ),
    Denied(
        "io_setup io_destroy io_submit io_cancel io_getevents io_pgetevents",
        "rarely used kernel code with a long list of faults, and memory pinned per context",
        ENOSYS,
    ),
    Denied(
        "inotify_init inotify_init1 inotify_add_watch inotify_rm_watch",
        "instances count against the owner of the outer namespace, and 128 starve the host's "
        "root; a watch on a shared inode tells what neighbours do. Watchers fall back to polling",
        ENOSYS,
    ),
    Denied("memfd_secret", "pages that the host cannot inspect, swap or hibernate", ENOSYS),
    Denied("set_thread_area get_thread_area", "32-bit segments; 64-bit kernels lack them", ENOSYS),
    # Namespaces and the mount tree.
    Denied("unshare", "a fresh user namespace gives capabilities over much kernel code"),
    Denied("setns", "joins a namespace whose descriptor leaked in"),
    Denied("mount", "hides or uncovers parts of the tree, such as masked files of /proc"),
    Denied("umount2", "uncovers what a mount hides"),
    Denied("pivot_root", "swaps the root for one that the guest built"),
    Denied("chroot", "leaves the root by a descriptor kept outside the new one"),
    Denied("open_tree", "copies a mount, with what lies below its covers"),
    Denied("open_tree_attr", "copies a mount and changes its flags"),
    Denied("move_mount", "moves a mount from over what it hides"),
    Denied("fsopen fsconfig fsmount fspick", "mounts without calling mount (CVE-2022-0185)"),
    Denied("mount_setattr", "drops read-only, nosuid or nodev from a mount"),
    Denied("statmount listmount", "reads the mount table past a masked /proc"),
    Denied("listns", "lists the namespaces of other sandboxes"),
    # The machine as a whole.
    Denied("swapon swapoff", "turns the host's swap on or off"),
    Denied("reboot", "restarts the host, or kills the pid namespace at a chosen moment"),
    Denied("kexec_load kexec_file_load", "replaces the host's kernel"),
    Denied("init_module finit_module", "loads code into the host's kernel"),
    Denied("delete_module", "removes a driver from under the host"),
    Denied("create_module get_kernel_syms query_module", "module calls of kernel 2.4"),
    Denied("settimeofday clock_settime", "sets the host's clock: no clock namespace covers it"),
    Denied("adjtimex clock_adjtime", "reads and bends the host's clock"),
    Denied("sethostname setdomainname", "renames the sandbox, to lie in logs"),
    Denied("syslog", "reads the host's kernel log: addresses, other tenants' crashes"),
    Denied("acct", "writes a record per ended process to a file of the guest's choice"),
    Denied("quotactl quotactl_fd", "reads and changes other owners' quotas"),
    Denied("sync syncfs", "writes out every tenant's dirty pages: stalls the whole host"),
    Denied("vhangup", "hangs up a terminal that others use"),
    Denied("iopl ioperm", "talks to hardware ports"),
    Denied("modify_ldt", "16-bit segments: old kernel code with many faults (CVE-2015-5157)"),
    Denied("nfsservctl", "configures the kernel's NFS server (removed in 3.1)"),
    Denied("lookup_dcookie", "names files by kernel cookies, past the mount tree"),
    # Large kernel surfaces.
    Denied("bpf", "runs guest code in the kernel behind a verifier that was wrong before"),
    Denied("perf_event_open", "counts and samples other processes; many faults (CVE-2013-2094)"),
    Denied("userfaultfd", "stops the kernel mid-copy: makes its races easy to win"),
    Denied("vmsplice", "pins pages and shares them with a pipe (CVE-2008-0600, CVE-2020-29374)"),
    Denied("remap_file_pages", "obsolete; emulated by rarely tested code"),
    # Keys and handles outlive a sandbox or cross between two.
    Denied("add_key request_key keyctl", "keyrings are per user id: memory shared by sandboxes"),
    Denied("name_to_handle_at open_by_handle_at", "opens any inode of a file system (shocker)"),
    Denied("fanotify_init fanotify_mark", "watches accesses by others to a shared file system"),
    Denied("file_getattr file_setattr", "project ids and inode flags decide what a quota counts"),
    # Other processes: the agent has the guest's user id.
    Denied("ptrace", "takes over any process of the same user, the agent first"),
    Denied("process_vm_readv process_vm_writev", "reads and writes another process's memory"),
    Denied("process_madvise process_mrelease", "drops another process's pages"),
    Denied("pidfd_getfd", "takes a descriptor out of another process"),
    Denied("kcmp", "compares kernel pointers of two processes"),
    Denied("sched_setaffinity", "leaves the processors given, so that nproc would lie"),
    # Memory placement: moves load on to other tenants' nodes, shows who shares a page.
    Denied("mbind set_mempolicy set_mempolicy_home_node", "crowds one memory node"),
    Denied("migrate_pages move_pages", "moves pages of other processes, tells where they are"),
    Denied("cachestat", "tells which pages of a shared image others used (CVE-2025-21691)"),
    # Memory and names that outlive every process of an execution.
    Denied(
        "shmget shmat shmctl shmdt", "segments outlive their makers and escape per-process limits"
    ),
    Denied("semget semop semctl semtimedop", "semaphores outlive their makers"),
    Denied("msgget msgsnd msgrcv msgctl", "kernel memory that outlives its makers"),
    Denied(
        "mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr",
        "kernel memory that outlives its makers",
    ),
    # What the host has loaded.
    Denied("lsm_get_self_attr lsm_set_self_attr lsm_list_modules", "maps the host's LSMs"),
    Denied("sysfs ustat", "lists the host's file systems and devices"),
    # Gone from the kernel, or never in it.
    Denied(
        "_sysctl uselib getpmsg putpmsg afs_syscall tuxcall security vserver epoll_ctl_old"
        " epoll_wait_old",
        "no program needs it",
    ),
)


@dataclass(frozen=True)
class Test:
    """True if `(argument & mask) in values`; with `inside=False` if not in them.

    Most arguments are `int` to the kernel, which drops the upper half of the register: so
    must the filter, or a guest sets a bit there and passes (CVE-2019-10063). `wide` looks
    at all 64 bits, for a pointer; such a test may only ask for 0.
    """

    __test__ = False  # not a test case, whatever pytest thinks of the name

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFF_FFFF
    inside: bool = True
    wide: bool = False


@dataclass(frozen=True)
class Clause:
    """The answer when every test holds."""

    tests: tuple[Test, ...]
    answer: Answer


@dataclass(frozen=True)
class Rule:
    """A call that its arguments decide: the first clause that holds, else `otherwise`."""

    calls: str
    reason: str
    clauses: tuple[Clause, ...]
    otherwise: Answer


def _bits_clear(argument: int, mask: int) -> Test:
    return Test(argument, (0,), mask=mask)


def _deny(argument: int, *values: int) -> tuple[Clause, ...]:
    return (Clause((Test(argument, values),), EPERM),)


def _allow(*tests: Test) -> tuple[Clause, ...]:
    return (Clause(tests, ALLOW),)


# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. NEWTIME (0x80) lies in
# the byte where clone takes the exit signal: only clone3 and unshare know it.
CLONE_NEW = 0x7E02_0000

S_IFMT = 0xF000
S_IFREG, S_IFIFO, S_IFSOCK = 0x8000, 0x1000, 0xC000

AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10
SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET = 1, 2, 5
SOCK_TYPE_MASK = 0xF  # the kernel's own; above it lie SOCK_CLOEXEC and SOCK_NONBLOCK
IPPROTO_IP, IPPROTO_TCP, IPPROTO_UDP = 0, 6, 17

RLIMIT_CORE = 4
_SETS_CORE = (Test(1, (RLIMIT_CORE,)), Test(2, (0,), inside=False, wide=True))  # prlimit64

RULES: tuple[Rule, ...] = (
    Rule(
        "clone",
        "no namespace of the guest's own: each widens the kernel it can reach",
        _allow(_bits_clear(0, CLONE_NEW)),
        EPERM,
    ),
    Rule(
        "personality",
        # PER_LINUX, ask, PER_LINUX32, UNAME26 and both. ADDR_NO_RANDOMIZE and
        # READ_IMPLIES_EXEC would switch the guest's own defences off across execve.
        "no personality that weakens address space layout or page protection",
        _allow(Test(0, (0, 0xFFFF_FFFF, 0x8, 0x2_0000, 0x2_0008))),
        EPERM,
    ),
    Rule(
        "socket",
        # AF_VSOCK is not namespaced; AF_ALG, AF_PACKET, AF_NETLINK, AF_TIPC and the rest
        # are kernel surface. An unusual protocol (SCTP, DCCP, SMC) loads its module.
        "stream, datagram and local sockets only: nothing raw, nothing that loads a module",
        (
            Clause((Test(0, (AF_UNIX, AF_INET, AF_INET6), inside=False),), EAFNOSUPPORT),
            Clause(
                (
                    Test(
                        1,
                        (SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET),
                        mask=SOCK_TYPE_MASK,
                        inside=False,
                    ),
                ),
                EPERM,
            ),
            Clause((Test(0, (AF_UNIX,)),), ALLOW),
            Clause((Test(1, (SOCK_SEQPACKET,), mask=SOCK_TYPE_MASK),), EPERM),
            Clause((Test(2, (IPPROTO_IP, IPPROTO_TCP, IPPROTO_UDP)),), ALLOW),
        ),
        EPROTONOSUPPORT,
    ),
    Rule("socketpair", "local pairs only", _allow(Test(0, (AF_UNIX,))), EAFNOSUPPORT),
    Rule(
        "setsockopt",
        # SOL_SOCKET: SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_CBPF and _EBPF.
        # Each socket holds compiled code against the host-wide net.core.bpf_jit_limit;
        # when that is used up, no process of the host can load a seccomp filter.
        "no guest code compiled into the kernel",
        (Clause((Test(1, (1,)), Test(2, (26, 50, 51, 52))), EPERM),),
        ALLOW,
    ),
    Rule(
        "ioctl",
        # TIOCSTI and TIOCLINUX type into a shared terminal (CVE-2017-5226); TIOCSETD
        # loads a line discipline (CVE-2017-2636).
        "no typing into terminals, no line disciplines",
        _deny(1, 0x5412, 0x541C, 0x5423),
        ALLOW,
    ),
    Rule(
        "fcntl",
        # F_SETLEASE, F_NOTIFY, F_SETDELEG: tell who else opens a shared inode, even a
        # read-only one. F_SET_RW_HINT: writes three bits on it that others read.
        "no side channel on a file that sandboxes share",
        _deny(1, 1024, 1026, 1036, 1040),
        ALLOW,
    ),
    Rule(
        "mmap",
        # MAP_HUGETLB.
        "no huge pages: they come from the host's pool, outside of the memory ceiling",
        _allow(_bits_clear(3, 0x4_0000)),
        EPERM,
    ),
    Rule(
        "memfd_create",
        # MFD_HUGETLB.
        "no huge pages, as for mmap",
        _allow(_bits_clear(1, 0x4)),
        EPERM,
    ),
    Rule(
        "madvise",
        # MADV_MERGEABLE, where the host runs KSM (for its virtual machines).
        "no merging of equal pages with other owners: a write then tells who had the same",
        _deny(2, 12),
        ALLOW,
    ),
    Rule(
        "prctl",
        # PR_SET_TSC; PR_SET_MM forges /proc/self/exe and cmdline; PR_SCHED_CORE keeps the
        # sibling thread of a core idle, at the neighbours' cost; PR_SET_MEMORY_MERGE as
        # madvise. PR_SET_SECCOMP is let through: see seccomp.
        "no forged identity, no core for oneself, no merging of pages",
        _deny(0, 26, 35, 62, 67),
        ALLOW,
    ),
    Rule(
        "seccomp",
        # SECCOMP_FILTER_FLAG_NEW_LISTENER (8) hands calls to a process that answers for
        # the kernel; SECCOMP_FILTER_FLAG_LOG (2) fills the host's log.
        "a guest's own filters only narrow (the kernel takes the strictest answer)",
        _allow(_bits_clear(1, 0x8 | 0x2)),
        EPERM,
    ),
    Rule(
        "mknod",
        # A character device with number 0 is an overlay's whiteout, and needs no capability.
        "regular files, FIFOs and sockets; no device",
        _allow(Test(1, (0, S_IFREG, S_IFIFO, S_IFSOCK), mask=S_IFMT)),
        EPERM,
    ),
    Rule(
        "mknodat",
        "as mknod",
        _allow(Test(2, (0, S_IFREG, S_IFIFO, S_IFSOCK), mask=S_IFMT)),
        EPERM,
    ),
    Rule(
        "setrlimit",
        # RLIMIT_CORE is set to 1: then the kernel neither writes a core file nor runs the
        # host's core_pattern handler (do_coredump in fs/coredump.c). 0 would let it run.
        # gpg and AddressSanitizer end where they cannot turn core dumps off.
        "the limit on core dumps stays as it is",
        (Clause((Test(0, (RLIMIT_CORE,)),), PRETENDED),),
        ALLOW,
    ),
    Rule(
        "prlimit64",
        # The agent has the guest's user id, so the kernel would let the guest choose its
        # limits. Only pid 0, the caller: a pid cannot be compared with one's own.
        "one's own limits only, and not the one on core dumps",
        (
            Clause((Test(0, (0,), inside=False),), EPERM),
            # Who asks for the old limit as well would be left without it.
            Clause((*_SETS_CORE, Test(3, (0,), wide=True)), PRETENDED),
            Clause(_SETS_CORE, EPERM),
        ),
        ALLOW,
    ),
    Rule(
        "sched_setscheduler sched_setparam sched_setattr",
        # No capability, so no real-time class: the kernel sees to that. But SCHED_IDLE for
        # the agent needs none.
        "one's own scheduling only",
        _allow(Test(0, (0,))),
        EPERM,
    ),
    Rule(
        "setpriority",
        "one's own priority only: PRIO_PROCESS, 0",
        _allow(Test(0, (0,)), Test(1, (0,))),
        EPERM,
    ),
    Rule(
        "ioprio_set",
        "one's own priority only: IOPRIO_WHO_PROCESS, 0",
        _allow(Test(0, (1,)), Test(1, (0,))),
        EPERM,
    ),
)

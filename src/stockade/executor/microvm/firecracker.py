"""Firecracker, as its documentation describes it. Experimental: nobody has seen this run.

It takes its orders by HTTP over a socket in a folder, writes a machine's memory itself when it
saves it, and has no virtio-serial port. The wire goes by vsock instead, on which the agent would
have to listen: a connection does not outlive a snapshot. The images that Stockade builds speak
the wire on a virtio-serial port only, so a guest boots and is then not heard. And it opens
``/dev/kvm`` by itself, in a jail where it is nobody: everyone on the host must be allowed to.
https://github.com/firecracker-microvm/firecracker/blob/main/src/firecracker/swagger/firecracker.yaml
"""

import asyncio
import contextlib
import os
import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from stockade.executor.asking import ask_version, find_program, first_line
from stockade.executor.microvm import vmm
from stockade.executor.microvm.jail import Jail, Program, program_of
from stockade.executor.microvm.vmm import Accelerator, Guest, Machine, StateRefused, abandon
from stockade.executor.wire import WireViolation, dump_object, load_object
from stockade.port import MIB, Unavailable

VARIABLE: Final = "STOCKADE_FIRECRACKER"
OLDEST: Final = (1, 5)
"""The first whose snapshots are no preview."""
WIRE_PORT: Final = 1024
"""Of vsock, on which an agent would listen."""
API_SECONDS: Final = 60.0
LARGEST_HEAD: Final = 8192
LARGEST_BODY: Final = 65_536

_KVM: Final = Path("/dev/kvm")
_GUEST_CID: Final = 3
# The same in all jails, for a snapshot holds it.
_VSOCK: Final = "/tmp/vsock"  # noqa: S108 - inside
_VERSION: Final = re.compile(rb"Firecracker v((\d{1,3})\.(\d{1,3})\.\d{1,3})\b")
_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
_LENGTH: Final = re.compile(rb"^content-length: *(\d{1,9}) *\r$", re.IGNORECASE | re.MULTILINE)
_TRY_AGAIN_SECONDS: Final = 0.005
_KERNEL_OPTIONS: Final = (
    "console=ttyS0 quiet reboot=k panic=-1 pci=off rdinit=/init mitigations=off nowatchdog "
    "rcupdate.rcu_cpu_stall_suppress=1"
)


@dataclass(frozen=True, slots=True)
class Firecracker:
    """A Firecracker that was tried."""

    path: Path
    version: str
    program: Program = field(repr=False)


def find_firecracker() -> Firecracker:
    """Take the one that ``STOCKADE_FIRECRACKER`` names, else the one on ``PATH``, and try it.

    Raises :class:`~stockade.port.Unavailable`, which says what to do, if it will not do.
    """
    path, called = find_program(VARIABLE, "firecracker", _unavailable)
    said = ask_version(path, called, _unavailable)
    version = _VERSION.match(said)
    if version is None:
        raise _unavailable(
            f"{called}, but its --version names no version of Firecracker: {first_line(said)}"
        )
    text = version[1].decode("ascii")
    if (int(version[2]), int(version[3])) < OLDEST:
        raise _unavailable(f"{called}, but that is Firecracker {text}")
    try:
        program = program_of(path)
    except OSError as error:
        raise _unavailable(f"{called}, but it cannot be read: {error.strerror}") from error
    if _KVM.exists():
        program = replace(program, seen=(*program.seen, _KVM))
    return Firecracker(path, text, program)


def _unavailable(fact: str) -> Unavailable:
    return Unavailable(
        f"{fact}; install Firecracker {OLDEST[0]}.{OLDEST[1]} or later and let {VARIABLE} hold "
        "its path"
    )


class ApiRefused(Unavailable):
    """Firecracker would not do what it was told, or says what no answer is."""


class FirecrackerGuest(Guest):
    """A machine of Firecracker's."""

    program = "Firecracker"
    api = vsock = Path()
    """Its sockets, as they are reached from outside of its jail."""
    saves_to: tuple[int, int] = (-1, -1)
    """Descriptors of the files for its state and its memory, which it has by the same numbers."""

    def close(self) -> None:
        """The file for the state as well; that for the memory is the caller's."""
        if self.saves_to[0] >= 0:
            os.close(self.saves_to[0])
            self.saves_to = (-1, -1)
        super().close()

    async def ask(self, method: str, path: str, body: Mapping[str, object]) -> None:
        """One request. Raises ApiRefused."""
        await request(self.api, method, path, body)

    async def ready(self) -> None:
        """The wire is connected when the agent listens, and not before."""
        await self.connect()
        await super().ready()

    async def connect(self) -> None:
        """Raises :class:`~stockade.port.Unavailable`."""
        if self.from_guest >= 0:
            return
        try:
            async with asyncio.timeout(vmm.BOOT_SECONDS):
                wire = await _connect_vsock(self.vsock)
        except TimeoutError:
            raise Unavailable(
                f"the microVM's agent did not listen within {vmm.BOOT_SECONDS:g} s: "
                f"{await self.dying_words()}"
            ) from None
        self.attach_wire(wire)


class FirecrackerVmm:
    """Firecracker in the executor's jail."""

    name = "Firecracker"
    experimental = True
    accelerator = Accelerator.KVM

    def __init__(self, found: Firecracker, jail: Jail) -> None:
        self._found = found
        self._jail = jail
        self.version = found.version

    def __repr__(self) -> str:
        return f"<FirecrackerVmm {self._found.path} {self.version}, experimental>"

    def close(self) -> None:
        """Give its ids back."""
        self._jail.close()

    async def start(
        self,
        name: str,
        machine: Machine,
        ram: int,
        doors: Sequence[int],
        cpus: Sequence[int],
        *,
        disk: int | None = None,
    ) -> FirecrackerGuest:
        """Boot a machine. Its memory is in ``ram`` once it was saved."""
        if machine.own_disk or disk is not None:
            raise Unavailable(
                "Firecracker's adapter gives no machine a disk of its own: use QEMU for that"
            )
        image = machine.image
        state = os.memfd_create("stockade-state", os.MFD_CLOEXEC)
        try:
            guest = await self._start(
                name, (image.kernel, image.initramfs, image.disk, ram, state), doors, cpus
            )
        except BaseException:
            os.close(state)
            raise
        guest.saves_to = state, ram
        options = f"{_KERNEL_OPTIONS} -- {' '.join(machine.arguments)}"
        try:
            await self._ask_all(guest, _boot_requests(machine, options))
        except BaseException:
            await asyncio.shield(abandon(guest))
            raise
        return guest

    async def save(self, guest: Guest) -> bytes:
        """Into files that it has the descriptors of."""
        assert isinstance(guest, FirecrackerGuest)
        state, ram = guest.saves_to
        await self._ask_all(guest, _save_requests(state, ram))
        size = os.fstat(state).st_size
        return os.pread(state, size, 0)

    async def restore(
        self,
        name: str,
        machine: Machine,
        ram: int,
        state: bytes,
        doors: Sequence[int],
        cpus: Sequence[int],
    ) -> FirecrackerGuest:
        """It maps the memory file privately."""
        kept = os.memfd_create("stockade-state", os.MFD_CLOEXEC)
        try:
            os.write(kept, state)
            guest = await self._start(name, (machine.image.disk, ram, kept), doors, cpus)
            try:
                await self._ask_all(guest, _load_requests(kept, ram))
                await guest.connect()
            except ApiRefused as error:
                await asyncio.shield(abandon(guest))
                raise StateRefused(f"Firecracker could not restore a guest: {error}") from None
            except BaseException:
                await asyncio.shield(abandon(guest))
                raise
        finally:
            os.close(kept)
        return guest

    async def _start(
        self, name: str, descriptors: Sequence[int], doors: Sequence[int], cpus: Sequence[int]
    ) -> FirecrackerGuest:
        # A name that nobody knows: until it is in its jail, the path leads to the host's.
        api = f"/tmp/{secrets.token_hex(16)}"  # noqa: S108 - inside
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        console, its_console = socket.socketpair()
        try:
            guest = await self._jail.start(
                FirecrackerGuest,
                name,
                self._found.program,
                ("--id", name, "--api-sock", api),
                stdin=null,
                stdout=its_console.fileno(),
                descriptors=descriptors,
                doors=doors,
                cpus=cpus,
            )
        except BaseException:
            console.close()
            raise
        finally:
            os.close(null)
            its_console.close()
        guest.attach_console(console)
        try:
            root = f"/proc/{_pid_of(guest.pidfd)}/root"
        except (OSError, Unavailable):
            await asyncio.shield(abandon(guest))
            raise
        guest.api, guest.vsock = Path(root + api), Path(root + _VSOCK)
        return guest

    async def _ask_all(
        self, guest: FirecrackerGuest, requests: Sequence[tuple[str, str, Mapping[str, object]]]
    ) -> None:
        try:
            async with asyncio.timeout(API_SECONDS):
                for method, path, body in requests:
                    await guest.ask(method, path, body)
        except TimeoutError:
            raise Unavailable(
                f"Firecracker did not do as it was told within {API_SECONDS:g} s: {guest.words}"
            ) from None
        except ApiRefused as error:
            words = await guest.dying_words()
            raise ApiRefused(f"{error}; {words}" if words else str(error)) from None


Requests = list[tuple[str, str, Mapping[str, object]]]


def _boot_requests(machine: Machine, options: str) -> Requests:
    image = machine.image
    return [
        (
            "PUT",
            "/machine-config",
            {"vcpu_count": machine.cpus, "mem_size_mib": machine.memory_bytes // MIB},
        ),
        (
            "PUT",
            "/boot-source",
            {
                "kernel_image_path": _path_of(image.kernel),
                "initrd_path": _path_of(image.initramfs),
                "boot_args": options,
            },
        ),
        (
            "PUT",
            "/drives/root",
            {
                "drive_id": "root",
                "path_on_host": _path_of(image.disk),
                "is_root_device": False,
                "is_read_only": True,
            },
        ),
        ("PUT", "/vsock", {"guest_cid": _GUEST_CID, "uds_path": _VSOCK}),
        ("PUT", "/actions", {"action_type": "InstanceStart"}),
    ]


def _save_requests(state: int, ram: int) -> Requests:
    return [
        ("PATCH", "/vm", {"state": "Paused"}),
        (
            "PUT",
            "/snapshot/create",
            {
                "snapshot_type": "Full",
                "snapshot_path": _path_of(state),
                "mem_file_path": _path_of(ram),
            },
        ),
    ]


def _load_requests(state: int, ram: int) -> Requests:
    return [
        (
            "PUT",
            "/snapshot/load",
            {
                "snapshot_path": _path_of(state),
                "mem_backend": {"backend_type": "File", "backend_path": _path_of(ram)},
                "resume_vm": True,
            },
        )
    ]


def _pid_of(pidfd: int) -> int:
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "Pid":
            return int(value)
    raise Unavailable("the supervisor of a guest did not start: its pidfd has no pid")


def _path_of(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


async def request(api: Path, method: str, path: str, body: Mapping[str, object]) -> None:
    """One request and its answer, which is hostile: bounded before it is read.

    Waits for the socket to be there. Raises ApiRefused.
    """
    data = dump_object(dict(body))
    reader, writer = await _open(api)
    try:
        writer.write(
            b"%b %b HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (method.encode("ascii"), path.encode("ascii"), len(data), data)
        )
        head = await reader.readuntil(b"\r\n\r\n")
        status, length = _STATUS.match(head), _LENGTH.search(head)
        size = 0 if length is None else int(length[1])
        if status is None or size > LARGEST_BODY:
            raise ApiRefused(f"{method} {path}: what came is no answer")
        said = await reader.readexactly(size)
        if not status[1].startswith(b"2"):
            fault = (
                load_object(said, "an answer", LARGEST_BODY).get("fault_message") if said else ""
            )
            words = "".join(c if c.isprintable() else " " for c in str(fault)[:500])
            raise ApiRefused(f"{method} {path}: {status[1].decode()} {words}".strip())
    except (OSError, EOFError, asyncio.LimitOverrunError, WireViolation) as error:
        raise ApiRefused(f"{method} {path}: no answer: {type(error).__name__}") from None
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _open(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        try:
            return await asyncio.open_unix_connection(str(path), limit=LARGEST_HEAD)
        except (FileNotFoundError, ConnectionRefusedError):
            await asyncio.sleep(_TRY_AGAIN_SECONDS)


async def _connect_vsock(path: Path) -> socket.socket:
    """To the agent's port, by the words that Firecracker wants first; until it listens."""
    loop = asyncio.get_running_loop()
    while True:
        wire = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        wire.setblocking(False)
        try:
            await loop.sock_connect(wire, str(path))
            await loop.sock_sendall(wire, b"CONNECT %d\n" % WIRE_PORT)
            if await _read_line(loop, wire):
                return wire
        except (FileNotFoundError, ConnectionError):
            pass
        except BaseException:
            wire.close()
            raise
        wire.close()
        await asyncio.sleep(_TRY_AGAIN_SECONDS)


async def _read_line(loop: asyncio.AbstractEventLoop, wire: socket.socket) -> bool:
    """``OK PORT``, by single bytes: what comes after it is the wire's."""
    line = b""
    while not line.endswith(b"\n"):
        byte = await loop.sock_recv(wire, 1)
        if not byte or len(line) == 32:
            return False
        line += byte
    return line.startswith(b"OK ")

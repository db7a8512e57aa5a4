"""QEMU: finding it, and what it is told.

https://www.qemu.org/docs/master/system/invocation.html,
https://www.qemu.org/docs/master/devel/migration/main.html
"""

import asyncio
import contextlib
import fcntl
import os
import re
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from stockade.executor.asking import ask_version, find_program, first_line
from stockade.executor.microvm.channel import Channel, CommandFailed, ControlBroken
from stockade.executor.microvm.jail import Jail, Program, program_of
from stockade.executor.microvm.vmm import Accelerator, Guest, Machine, StateRefused, abandon
from stockade.port import MIB, Unavailable

VARIABLE: Final = "STOCKADE_QEMU"
OLDEST: Final = (7, 2)
"""Debian 12's. tools/get-qemu fetches Debian 13's."""
CONTROL_SECONDS: Final = 60.0
"""For a machine to be saved, or to be restored: milliseconds, where nothing else runs."""
MOST_STATE: Final = 64 * MIB
"""What is kept of a machine beside its RAM; it takes less than half a MiB."""

_VERSION: Final = re.compile(rb"QEMU emulator version ((\d{1,3})\.(\d{1,3})(?:\.\d{1,3})?)\b")
_PIPE_BYTES: Final = MIB
_TRANSLATED_MIB: Final = 64
"""How much of a guest's code QEMU keeps in translation; by itself it takes up to a GiB."""
_KVM_DEVICE: Final = Path("/dev/kvm")
_TAKES_KVM: Final = (8, 2)
"""The first that is sure to take it by a descriptor (``-accel kvm,device=``); 7.2 does not."""
_LONGEST_COMMAND_LINE: Final = 2047
"""COMMAND_LINE_SIZE of x86, but for its end."""
_DISK_SET: Final = 1
_KVM_SET: Final = 2
_OWN_DISK_SET: Final = 3
_BIOS: Final = "bios-256k.bin"
_OPTION: Final = "linuxboot_dma.bin"
_OPTION_OF_ELF: Final = "pvh.bin"
_ASKING_SECONDS: Final = 10.0

_WIRE: Final = 0
_CONTROL: Final = 1
"""Numbers of its descriptors: it has its end of both in place of streams."""

# quiet: the console is a serial port, and slow. panic, reboot: a kernel that dies ends its
# machine (-no-reboot). nowatchdog and rcupdate: a machine that stood still for minutes, and is
# let go on, has no lockup to tell of. tsc, no_timer_check: a host's clock is not to be doubted
# because a busy host was slow.
KERNEL_OPTIONS: Final = (
    "console=ttyS0 quiet reboot=t panic=-1 rdinit=/init mitigations=off nowatchdog "
    "rcupdate.rcu_cpu_stall_suppress=1 tsc=reliable no_timer_check random.trust_cpu=on"
)
# No device but those of the wire, the disk and the console; no KSM, by whose time one guest
# learns what another has in memory.
_MACHINE: Final = "q35,usb=off,vmport=off,sata=off,smbus=off,memory-backend=ram"
_INCOMING: Final = ("-incoming", "defer")
_SANDBOX: Final = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"


@dataclass(frozen=True, slots=True)
class Qemu:
    """A QEMU that was tried."""

    path: Path
    """Absolute. Of the program, or of a script that starts it with the same arguments."""
    version: str
    """Like ``10.0.2``."""
    release: tuple[int, int]
    program: Program = field(repr=False)


@dataclass(frozen=True, slots=True)
class Firmware:
    """What a machine runs before its kernel: files that are open."""

    bios: int
    option: int
    """What starts the kernel, of the machine's own kind: QEMU opens it by its name."""
    option_path: Path

    @property
    def files(self) -> dict[str, int]:
        """By name."""
        return {_BIOS: self.bios, self.option_path.name: self.option}

    def close(self) -> None:
        """Close them."""
        os.close(self.bios)
        os.close(self.option)


def find_firmware(qemu: Qemu, kernel: int) -> Firmware:
    """Where this QEMU looks for it. Raises :class:`~stockade.port.Unavailable`.

    ``kernel``: the file that is to be started.
    """
    option = _OPTION_OF_ELF if os.pread(kernel, 4, 0) == b"\x7fELF" else _OPTION
    try:
        said = subprocess.run(
            [qemu.path, "-L", "help"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ASKING_SECONDS,
            check=False,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise _unavailable(f"{qemu.path} does not say where its firmware is: {error}") from error
    folders = [Path(os.fsdecode(line)) for line in said.splitlines() if line.startswith(b"/")]
    bios, _ = _open_first(qemu, folders, _BIOS)
    try:
        return Firmware(bios, *_open_first(qemu, folders, option))
    except BaseException:
        os.close(bios)
        raise


def _open_first(qemu: Qemu, folders: Sequence[Path], name: str) -> tuple[int, Path]:
    """As QEMU itself does."""
    for folder in folders:
        with contextlib.suppress(OSError):
            return os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC), folder / name
    raise _unavailable(f"{qemu.path} has no {name} in any of its folders of firmware")


def find_qemu() -> Qemu:
    """Take the one that ``STOCKADE_QEMU`` names, else the one on ``PATH``, and try it.

    Raises :class:`~stockade.port.Unavailable`, which says what to do, if it will not do.
    """
    path, called = find_program(VARIABLE, "qemu-system-x86_64", _unavailable)
    said = ask_version(path, called, _unavailable)
    version = _VERSION.match(said)
    if version is None:
        raise _unavailable(
            f"{called}, but its --version names no version of QEMU: {first_line(said)}"
        )
    text, release = version[1].decode("ascii"), (int(version[2]), int(version[3]))
    if release < OLDEST:
        raise _unavailable(
            f"{called}, but that is QEMU {text}, and Stockade was never tested with one before "
            f"{OLDEST[0]}.{OLDEST[1]}"
        )
    try:
        program = program_of(path)
    except OSError as error:
        raise _unavailable(f"{called}, but it cannot be read: {error.strerror}") from error
    return Qemu(path, text, release, program)


def _unavailable(fact: str) -> Unavailable:
    remedy = (
        f"in a clone of Stockade, ./dev setup gets one where {VARIABLE} is not set; else install "
        f"QEMU {OLDEST[0]}.{OLDEST[1]} or later (apt-get install qemu-system-x86) and let "
        f"{VARIABLE} hold the path of its qemu-system-x86_64"
    )
    return Unavailable(f"{fact}; {remedy}")


class QemuGuest(Guest):
    """A machine of QEMU's."""

    program = "QEMU"
    channel: Channel | None = None

    def close(self) -> None:
        """The control socket as well."""
        self.let_go()
        super().close()

    def let_go(self) -> None:
        """Tell it nothing any more."""
        if self.channel is not None:
            self.channel.close()
            self.channel = None


class QemuVmm:
    """QEMU with the executor's devices, in the executor's jail."""

    name = "QEMU"
    experimental = False

    def __init__(
        self,
        qemu: Qemu,
        jail: Jail,
        accelerator: Accelerator,
        firmware: Firmware | None = None,
    ) -> None:
        """``firmware``: what machines are to start with; none: what QEMU finds by itself."""
        self._qemu = qemu
        self._jail = jail
        self._firmware = firmware
        self.accelerator = accelerator
        self.version = qemu.version

    def __repr__(self) -> str:
        return f"<QemuVmm {self._qemu.path} {self.version}, {self.accelerator}>"

    def close(self) -> None:
        """Give its ids back."""
        self._jail.close()
        if self._firmware is not None:
            self._firmware.close()

    async def start(
        self,
        name: str,
        machine: Machine,
        ram: int,
        doors: Sequence[int],
        cpus: Sequence[int],
        *,
        disk: int | None = None,
    ) -> QemuGuest:
        """Boot a machine."""
        image = machine.image
        options = _kernel_options(machine)
        if len(options) > _LONGEST_COMMAND_LINE:
            raise Unavailable(
                f"a kernel takes {_LONGEST_COMMAND_LINE} bytes of options, and with the names of "
                f"all modules they are {len(options)}: preload fewer"
            )
        bios = None if self._firmware is None else self._firmware.bios
        boots = _boot_arguments(options, image.kernel, image.initramfs, bios)
        inherited = [image.kernel, image.initramfs]
        if bios is not None:
            inherited.append(bios)
        with ExitStack() as stack:
            if disk is not None:
                readable = _open_for_reading(disk)
                stack.callback(os.close, readable)
                boots += _own_disk_arguments(disk, readable)
                inherited += [disk, readable]
            return await self._start(
                name,
                machine,
                ram,
                boots,
                doors,
                cpus,
                shares=True,
                descriptors=inherited,
            )

    def command_line(self, machine: Machine) -> tuple[str, ...]:
        """What ``start`` tells QEMU; in place of the numbers of open files, what they are."""
        bios = None if self._firmware is None else "firmware"
        kvm = "kvm" if self.accelerator is Accelerator.KVM else None
        words = _arguments(machine, "ram", "console", "image", kvm, shares=True, boots=True)
        words += _boot_arguments(_kernel_options(machine), "kernel", "initramfs", bios)
        if machine.own_disk:
            words += _own_disk_arguments("disk", "disk, to read")
        return tuple(words)

    @property
    def firmware(self) -> Firmware | None:
        """What machines start with, where it was named."""
        return self._firmware

    async def save(self, guest: Guest) -> bytes:
        """Into a pipe, which every QEMU can write to without opening anything."""
        assert isinstance(guest, QemuGuest)
        assert guest.channel is not None
        channel = guest.channel
        state_from, state_to = os.pipe()
        os.set_blocking(state_from, False)
        state = _StateReader(state_from)
        try:
            async with asyncio.timeout(CONTROL_SECONDS):
                completed = channel.expect("MIGRATION", "completed")
                failed = channel.expect("MIGRATION", "failed")
                answers = [
                    *_prepare(channel),
                    channel.post("getfd", {"fdname": "state"}, [state_to]),
                    channel.post("migrate", {"uri": "fd:state"}),
                ]
                await asyncio.gather(*answers)
                await asyncio.wait([completed, failed], return_when=asyncio.FIRST_COMPLETED)
                if not completed.done():
                    raise Unavailable(f"QEMU could not save the warm guest: {guest.words}")
                completed.result()
        except TimeoutError:
            raise Unavailable(
                f"QEMU did not save the warm guest within {CONTROL_SECONDS:g} s: {guest.words}"
            ) from None
        except (ControlBroken, CommandFailed) as error:
            words = await guest.dying_words()
            raise Unavailable(f"QEMU could not save the warm guest: {error}; {words}") from None
        finally:
            saved = state.finish()
            os.close(state_from)
            os.close(state_to)
        if saved is None:
            raise Unavailable(f"QEMU saved more than {MOST_STATE} bytes of the warm guest")
        return saved

    async def restore(
        self,
        name: str,
        machine: Machine,
        ram: int,
        state: bytes,
        doors: Sequence[int],
        cpus: Sequence[int],
    ) -> QemuGuest:
        """From a pipe that holds the state. Nothing is booted: no kernel is loaded."""
        if not state:
            # QEMU would wait: an empty pipe that ends is nothing to read.
            raise StateRefused("a machine's state of no bytes")
        state_from, state_to = os.pipe()
        feeding = asyncio.create_task(_feed(state_to, state))
        # Not by itself: cancelled before its first step, it would take none.
        feeding.add_done_callback(lambda _: os.close(state_to))
        try:
            guest = await self._start(
                name,
                machine,
                ram,
                _INCOMING,
                doors,
                cpus,
                shares=False,
                descriptors=(state_from,),
            )
            try:
                await self._let_in(guest, state_from)
            except BaseException:
                await asyncio.shield(abandon(guest))
                raise
        finally:
            os.close(state_from)
            feeding.cancel()
        guest.let_go()
        return guest

    async def _let_in(self, guest: QemuGuest, state_from: int) -> None:
        """Until it runs. A machine that was saved running runs when it is restored."""
        assert guest.channel is not None
        channel = guest.channel
        try:
            async with asyncio.timeout(CONTROL_SECONDS):
                running = channel.expect("RESUME")
                answers = [
                    *_prepare(channel),
                    channel.post("migrate-incoming", {"uri": f"fd:{state_from}"}),
                ]
                greeting = await channel.greeting
                if greeting.version.partition(" ")[0] != self.version:
                    raise StateRefused(
                        f"QEMU was {self.version} and is {greeting.version} now: what the one "
                        "saved is not for the other"
                    )
                await asyncio.gather(*answers)
                await running
        except TimeoutError:
            raise Unavailable(
                f"QEMU restored no guest within {CONTROL_SECONDS:g} s: {guest.words}"
            ) from None
        except (ControlBroken, CommandFailed) as error:
            words = await guest.dying_words()
            raise StateRefused(f"QEMU could not restore a guest: {error}; {words}") from None

    async def _start(
        self,
        name: str,
        machine: Machine,
        ram: int,
        arguments: Sequence[str],
        doors: Sequence[int],
        cpus: Sequence[int],
        *,
        shares: bool,
        descriptors: Sequence[int],
    ) -> QemuGuest:
        kvm = _open_kvm(self._qemu) if self.accelerator is Accelerator.KVM else None
        if kvm is not None:
            descriptors = (*descriptors, kvm)
        try:
            return await self._start_with_sockets(
                name,
                lambda console: [
                    *_arguments(
                        machine,
                        ram,
                        console,
                        machine.image.disk,
                        kvm,
                        shares=shares,
                        boots=arguments != _INCOMING,
                    ),
                    *arguments,
                ],
                (machine.image.disk, ram, *descriptors),
                doors,
                cpus,
            )
        finally:
            if kvm is not None:
                os.close(kvm)

    async def _start_with_sockets(
        self,
        name: str,
        arguments: Callable[[int], Sequence[str]],
        descriptors: Sequence[int],
        doors: Sequence[int],
        cpus: Sequence[int],
    ) -> QemuGuest:
        """``arguments`` are asked for with the number of the console's descriptor."""
        with ExitStack() as ours, ExitStack() as theirs:
            try:
                pairs = [socket.socketpair() for _ in range(3)]
            except OSError as error:
                raise Unavailable(f"QEMU cannot be started: {error}") from error
            for mine, its in pairs:
                ours.enter_context(mine)
                theirs.enter_context(its)
            (wire, its_wire), (control, its_control), (console, its_console) = pairs
            guest = await self._jail.start(
                QemuGuest,
                name,
                self._qemu.program,
                arguments(its_console.fileno()),
                stdin=its_wire.fileno(),
                stdout=its_control.fileno(),
                descriptors=(its_console.fileno(), *descriptors),
                doors=doors,
                cpus=cpus,
            )
            ours.pop_all()
        guest.attach_wire(wire)
        guest.attach_console(console)
        guest.channel = Channel(control)
        return guest


def _open_kvm(qemu: Qemu) -> int:
    """For a VMM, which is nobody on the host and could not open it."""
    if qemu.release < _TAKES_KVM:
        raise Unavailable(
            f"QEMU {qemu.version} opens {_KVM_DEVICE} itself, which nobody on this host may: "
            f"with KVM, Stockade needs QEMU {_TAKES_KVM[0]}.{_TAKES_KVM[1]} or later"
        )
    try:
        return os.open(_KVM_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise Unavailable(f"{_KVM_DEVICE}: {error.strerror}") from error


_File = int | str
"""The number of an open file; or its name, where nothing is started."""


def _arguments(
    machine: Machine,
    ram: _File,
    console: _File,
    disk: _File,
    kvm: _File | None,
    *,
    shares: bool,
    boots: bool,
) -> list[str]:
    mebibytes = machine.memory_bytes // MIB
    if kvm is not None:
        runs = [
            *("-add-fd", f"fd={kvm},set={_KVM_SET}"),
            *("-accel", f"kvm,device=/dev/fdset/{_KVM_SET}"),
            *("-cpu", "host,-arch-capabilities"),
        ]
    else:
        # With a thread for each CPU it dies now and then while a guest boots, and so maps its
        # devices: on the assertion in iotlb_to_section(), system/physmem.c. A copy maps nothing
        # any more. With one thread its CPUs wait for one another, and a call takes twice as long.
        thread = "single" if boots else "multi"
        runs = ["-accel", f"tcg,thread={thread},tb-size={_TRANSLATED_MIB}", "-cpu", "max"]
    return [
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-sandbox", _SANDBOX),
        *("-machine", _MACHINE),
        *runs,
        *("-m", f"{mebibytes}M", "-smp", str(machine.cpus)),
        "-object",
        f"memory-backend-file,id=ram,size={mebibytes}M,mem-path={_path_of(ram)},"
        f"share={'on' if shares else 'off'},merge=off,dump=off",
        *("-add-fd", f"fd={disk},set={_DISK_SET}"),
        *("-drive", f"file=/dev/fdset/{_DISK_SET},format=raw,if=none,id=root,read-only=on"),
        *("-device", "virtio-blk-pci,drive=root"),
        *("-device", "virtio-serial-pci,max_ports=2"),
        *("-chardev", f"socket,id=wire,fd={_WIRE}"),
        *("-device", "virtserialport,chardev=wire,name=wire"),
        # By which a copy's kernel learns that it is one, and takes new random numbers.
        *("-device", "vmgenid,guid=auto"),
        *("-chardev", f"socket,id=console,fd={console}", "-serial", "chardev:console"),
        *("-chardev", f"socket,id=control,fd={_CONTROL}", "-mon", "chardev=control,mode=control"),
    ]


def _kernel_options(machine: Machine) -> str:
    return f"{KERNEL_OPTIONS} -- {' '.join(machine.arguments)}"


def _boot_arguments(options: str, kernel: _File, initramfs: _File, bios: _File | None) -> list[str]:
    words = ["-kernel", _path_of(kernel), "-initrd", _path_of(initramfs), "-append", options]
    return words if bios is None else [*words, "-bios", _path_of(bios)]


def _open_for_reading(disk: int) -> int:
    try:
        return os.open(_path_of(disk), os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise Unavailable(f"a machine's own disk cannot be opened: {error.strerror}") from error


def _own_disk_arguments(disk: _File, readable: _File) -> list[str]:
    """The machine's second. Nothing of it outlives the machine: the host need not write it out.

    A host's disk that is full is the guest's error, and no machine that stands still.
    ``readable``: the same for reading only, which QEMU begins with.
    """
    return [
        *("-add-fd", f"fd={disk},set={_OWN_DISK_SET}"),
        *("-add-fd", f"fd={readable},set={_OWN_DISK_SET}"),
        "-drive",
        f"file=/dev/fdset/{_OWN_DISK_SET},format=raw,if=none,id=scratch,cache=unsafe,"
        "werror=report,rerror=report,file.locking=off",
        *("-device", "virtio-blk-pci,drive=scratch"),
    ]


def _path_of(descriptor: _File) -> str:
    return f"/proc/self/fd/{descriptor}"


def _prepare(channel: Channel) -> list[asyncio.Future[None]]:
    """Commands are sent at once: QEMU reads them when it is up."""
    wanted = [{"capability": name, "state": True} for name in ("x-ignore-shared", "events")]
    return [
        channel.post("qmp_capabilities"),
        channel.post("migrate-set-capabilities", {"capabilities": wanted}),
    ]


class _StateReader:
    """Takes what comes through a pipe until it is finished, and no more than may."""

    def __init__(self, pipe: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._pipe = pipe
        self._state: bytearray | None = bytearray()
        self._loop.add_reader(pipe, self._take)

    def finish(self) -> bytes | None:
        """All of it; ``None`` if it was too much. The writer has said that it is done."""
        while self._take():
            pass
        self._loop.remove_reader(self._pipe)
        return None if self._state is None else bytes(self._state)

    def _take(self) -> bool:
        try:
            data = os.read(self._pipe, _PIPE_BYTES)
        except OSError:
            return False
        if not data:
            self._loop.remove_reader(self._pipe)
        if self._state is not None:
            self._state += data
            if len(self._state) > MOST_STATE:
                self._state = None
        return bool(data) and self._state is not None


async def _feed(pipe: int, data: bytes) -> None:
    """Write it all, as far as somebody reads."""
    loop = asyncio.get_running_loop()
    left = memoryview(data)
    try:
        os.set_blocking(pipe, False)
        with contextlib.suppress(OSError):
            # Then one write takes all; a plain user may have too many of these, and goes on.
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        while left:
            try:
                left = left[os.write(pipe, left) :]
            except BlockingIOError:
                writable = asyncio.Event()
                loop.add_writer(pipe, writable.set)
                try:
                    await writable.wait()
                finally:
                    loop.remove_writer(pipe)
    except BrokenPipeError:
        pass  # it ended, which is heard elsewhere

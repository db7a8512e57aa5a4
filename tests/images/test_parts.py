"""The parts of an image: unpacked packages, the kernel, its modules, the initramfs, the root."""

import gzip
import lzma
import os
import stat
import struct
from pathlib import Path

import pytest

from stockade.executor.namespace.image import Copy
from stockade.executor.root import USERS
from stockade.images.errors import CannotBuild
from stockade.images.initramfs import Module, make_initramfs
from stockade.images.kernel import read_kernel, read_modules
from stockade.images.root import furnish, lay_in
from stockade.images.unpack import unpack

from .kit import LOADER, SCRIPT, Debian, needs_dpkg

TRIPLET = "x86_64-linux-gnu"
PVH = struct.pack("<III", 4, 8, 18) + b"Xen\0" + b"\0" * 8
ELF = b"\x7fELF" + b"code" * 500


# --- packages --------------------------------------------------------------------------------


@needs_dpkg
def test_no_program_gives_its_caller_rights(debian: Debian, tmp_path: Path) -> None:
    """Set-id bits are for a system with users."""
    package = debian.add("tool", {"usr/bin/tool!": SCRIPT})
    unpack([package], tmp_path / "root")
    status = (tmp_path / "root/usr/bin/tool").stat()
    assert stat.S_IMODE(status.st_mode) == 0o755
    assert (status.st_uid, status.st_gid) == (os.geteuid(), os.getegid())


@needs_dpkg
def test_the_folders_of_an_older_debian_are_those_of_usr(debian: Debian, tmp_path: Path) -> None:
    """Debian 12's C library is in /lib."""
    package = debian.add("library", {"lib/x86_64-linux-gnu/library.so": "new"})
    unpack([package], tmp_path / "root")
    assert (tmp_path / "root/usr/lib/x86_64-linux-gnu/library.so").read_text() == "new"
    assert (tmp_path / "root/lib").is_symlink()


@needs_dpkg
def test_a_package_that_is_none_is_said(tmp_path: Path) -> None:
    broken = tmp_path / "broken.deb"
    broken.write_bytes(b"!<arch>\n")
    with pytest.raises(CannotBuild, match=r"broken\.deb cannot be unpacked: "):
        unpack([broken], tmp_path / "root")


# --- the kernel ------------------------------------------------------------------------------


def make_kernel(folder: Path, payload: bytes) -> bytes:
    """A bzImage: docs.kernel.org/arch/x86/boot.html"""
    head = bytearray(1024)
    head[0x1F1] = 1
    head[0x202:0x206] = b"HdrS"
    struct.pack_into("<II", head, 0x248, 16, len(payload))
    image = bytes(head) + b"\xee" * 16 + payload + b"\xee" * 100
    (folder / "boot").mkdir(parents=True, exist_ok=True)
    (folder / "boot/vmlinuz-6.12").write_bytes(image)
    return image


def never(data: bytes) -> bytes:
    raise AssertionError


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress])
def test_the_bare_kernel_is_taken_out(tmp_path: Path, compress: object) -> None:
    """Under emulation it takes the guest a second or more."""
    assert callable(compress)
    make_kernel(tmp_path, compress(ELF + PVH) + struct.pack("<I", 1))
    assert read_kernel(tmp_path, never) == ELF + PVH


def test_zstd_is_anothers_work(tmp_path: Path) -> None:
    """Which is given the stream alone, without the length that the kernel's build appends."""
    make_kernel(tmp_path, b"\x28\xb5\x2f\xfdstream" + b"size")
    assert (
        read_kernel(tmp_path, lambda data: ELF + PVH + data)
        == ELF + PVH + b"\x28\xb5\x2f\xfdstream"
    )


@pytest.mark.parametrize("payload", [gzip.compress(ELF, mtime=0), b"\x02\x21\x4c\x18 lz4"])
def test_a_kernel_that_qemu_could_not_start_bare_stays_whole(
    tmp_path: Path, payload: bytes
) -> None:
    image = make_kernel(tmp_path, payload + b"size")
    assert read_kernel(tmp_path, never) == image


def test_a_kernel_of_another_machine_is_refused(tmp_path: Path) -> None:
    (tmp_path / "boot").mkdir()
    (tmp_path / "boot/vmlinuz-6.12").write_bytes(b"MZ" + b"\0" * 2048)
    with pytest.raises(CannotBuild, match="not one for x86"):
        read_kernel(tmp_path, never)


def make_modules(folder: Path, built_in: str, **depends: str) -> None:
    tree = folder / "usr/lib/modules/6.12"
    (tree / "kernel").mkdir(parents=True)
    (tree / "modules.builtin").write_text(built_in)
    for name, needed in depends.items():
        content = f"\x7fELF\0license=GPL\0depends={needed}\0name={name}\0".encode()
        (tree / f"kernel/{name.replace('_', '-')}.ko.xz").write_bytes(lzma.compress(content))


def test_each_module_stands_behind_what_it_depends_on(tmp_path: Path) -> None:
    make_modules(
        tmp_path,
        "kernel/drivers/virtio/virtio_pci.ko\nkernel/drivers/char/virtio_console.ko\n",
        virtio_blk="",
        erofs="libcrc32c,netfs",
        libcrc32c="crc32c",
        netfs="",
        crc32c="",
        ext4="mbcache,jbd2,crc32c",
        mbcache="",
        jbd2="crc32c",
        unused="",
    )
    modules = read_modules(tmp_path)
    names = [[module.name for module in part] for part in modules]
    assert names == [
        ["virtio_blk", "crc32c", "libcrc32c", "netfs", "erofs"],
        ["mbcache", "jbd2", "ext4"],
    ]


def test_a_kernel_without_what_a_guest_needs_is_refused(tmp_path: Path) -> None:
    make_modules(tmp_path, "kernel/drivers/virtio/virtio_pci.ko\n", virtio_blk="", erofs="")
    with pytest.raises(CannotBuild, match="no module virtio_console"):
        read_modules(tmp_path)


# --- the initramfs ---------------------------------------------------------------------------


def read_archive(data: bytes) -> list[tuple[str, int, bytes]]:
    """Name, mode and content, as the kernel reads them."""
    entries: list[tuple[str, int, bytes]] = []
    place = 0
    while True:
        assert data[place : place + 6] == b"070701"
        fields = [int(data[at : at + 8], 16) for at in range(place + 6, place + 110, 8)]
        mode, size, length = fields[1], fields[6], fields[11]
        name = data[place + 110 : place + 110 + length - 1].decode()
        place = (place + 110 + length + 3) & ~3
        if name == "TRAILER!!!":
            return entries
        entries.append((name, mode, data[place : place + size]))
        place = (place + size + 3) & ~3


def test_the_initramfs_is_init_and_modules_in_order() -> None:
    made = make_initramfs(b"program", [Module("b", b"12345"), Module("a", b"")], [Module("c", b"")])
    assert read_archive(made) == [
        ("init", 0o100755, b"program"),
        ("modules", 0o040755, b""),
        ("modules/00-b.ko", 0o100644, b"12345"),
        ("modules/01-a.ko", 0o100644, b""),
        ("disk-modules", 0o040755, b""),
        ("disk-modules/00-c.ko", 0o100644, b""),
    ]
    assert made == make_initramfs(
        b"program", [Module("b", b"12345"), Module("a", b"")], [Module("c", b"")]
    )


# --- the root --------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A root as packages make it, whose Python only notes what it is asked."""
    made = tmp_path / "root"
    for name in ("usr/bin", f"usr/lib/{TRIPLET}/blas", "usr/lib/python3.13", "etc", "var/lib/dpkg"):
        (made / name).mkdir(parents=True)
    for name, text in {
        "usr/bin/python3": SCRIPT + f'echo "$PYTHONHASHSEED $@" >>{tmp_path}/compiled\n',
        f"usr/lib/{TRIPLET}/ld-linux-x86-64.so.2": LOADER,
    }.items():
        (made / name).write_text(text)
        (made / name).chmod(0o755)
    for name in ("usr/bin/mawk", f"usr/lib/{TRIPLET}/blas/libblas.so.3", "var/lib/dpkg/status"):
        (made / name).write_text(name)
    (made / "usr/share/doc/x").mkdir(parents=True)
    (made / "etc/hosts").write_text("of a package\n")
    return made


def test_a_root_has_our_users_and_folders_and_no_more_than_is_read(tree: Path) -> None:
    furnish(tree, TRIPLET)
    assert sorted(path.name for path in tree.iterdir()) == [
        "dev", "etc", "opt", "proc", "run", "sys", "tmp", "usr", "var", "workspace",
    ]  # fmt: skip
    assert {name: (tree / "etc" / name).read_text() for name in USERS} == USERS
    assert [path.name for path in (tree / "var").iterdir()] == ["tmp"]
    assert (tree / "var/tmp").readlink() == Path("/tmp")
    assert not (tree / "usr/share/doc").exists()


def test_links_that_a_packages_script_would_make_are_made(tree: Path) -> None:
    """No script is run."""
    furnish(tree, TRIPLET)
    assert (tree / "usr/bin/awk").readlink() == Path("mawk")
    assert (tree / f"usr/lib/{TRIPLET}/libblas.so.3").readlink() == Path("blas/libblas.so.3")
    assert not (tree / "usr/bin/cc").is_symlink()


def test_python_is_compiled_by_the_images_own(tree: Path, tmp_path: Path) -> None:
    """A guest could not keep it; and neither times nor chance are in it."""
    furnish(tree, TRIPLET)
    source = tmp_path / "part.py"
    source.write_text("")
    lay_in(tree, TRIPLET, [Copy(source, "/opt/stockade/stockade_guest/part.py")])
    library, ours = (tmp_path / "compiled").read_text().splitlines()
    for line, folder in ((library, "usr/lib/python3.13"), (ours, "opt/stockade/stockade_guest")):
        assert line.startswith("0 ")
        assert "--invalidation-mode unchecked-hash" in line
        assert line.endswith(f" {tree}/{folder}")


def test_our_part_is_laid_in_as_it_is(tree: Path, tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    agent.write_text("agent")
    agent.chmod(0o700)
    lay_in(tree, TRIPLET, [Copy(agent, "/opt/stockade/stockade-agent")])
    laid = tree / "opt/stockade/stockade-agent"
    assert (laid.read_text(), stat.S_IMODE(laid.stat().st_mode)) == ("agent", 0o755)


def test_a_root_without_python_is_refused(tree: Path) -> None:
    (tree / "usr/bin/python3").unlink()
    with pytest.raises(CannotBuild, match="no /usr/bin/python3"):
        furnish(tree, TRIPLET)

"""What runsc is told of a sandbox, and the root that it starts from."""

import json
from pathlib import Path
from typing import Any

import pytest

from stockade.executor.gvisor.bundle import make_root, write_bundle
from stockade.executor.namespace.image import Bind, Copy, HostImage


@pytest.fixture
def image(tmp_path: Path) -> HostImage:
    """A host with a large folder, small ones, a file, a device, and our own files."""
    host = tmp_path / "host"
    for name in ("usr", "etc/small", "etc/large"):
        (host / name).mkdir(parents=True)
    (host / "etc/small/f").write_text("small")
    (host / "etc/small/link").symlink_to("/etc/shadow")
    (host / "etc/large/f").write_bytes(b"x" * (2 << 20))
    (host / "etc/file").write_text("file")
    (host / "agent").write_text("agent")
    (host / "agent").chmod(0o755)
    return HostImage(
        digest="sha256:" + "0" * 64,
        binds=(
            Bind(host / "usr", "/usr"),
            Bind(host / "etc/small", "/etc/small"),
            Bind(host / "etc/large", "/etc/large"),
            Bind(host / "etc/file", "/etc/file"),
            Bind(Path("/dev/null"), "/dev/null"),
        ),
        copies=(Copy(host / "agent", "/opt/stockade/stockade-agent"),),
    )


def configuration(tmp_path: Path, *modules: str) -> dict[str, Any]:
    write_bundle(
        tmp_path / "bundle", tmp_path / "root", [Bind(Path("/usr"), "/usr")], 1234, modules
    )
    loaded: dict[str, Any] = json.loads((tmp_path / "bundle/config.json").read_text())
    return loaded


def test_small_folders_are_copied_and_large_ones_mounted(tmp_path: Path, image: HostImage) -> None:
    root = tmp_path / "root"
    mounts = make_root(root, image)
    assert [mount.target for mount in mounts] == ["/usr", "/etc/large"]
    assert (root / "etc/small/f").read_text() == "small"
    assert (root / "etc/file").read_text() == "file"
    assert list((root / "usr").iterdir()) == list((root / "etc/large").iterdir()) == []


def test_a_link_is_copied_as_a_link(tmp_path: Path, image: HostImage) -> None:
    """What it points to outside is not copied in."""
    root = tmp_path / "root"
    make_root(root, image)
    assert (root / "etc/small/link").readlink() == Path("/etc/shadow")


def test_devices_are_the_kernels_own(tmp_path: Path, image: HostImage) -> None:
    root = tmp_path / "root"
    make_root(root, image)
    assert list((root / "dev").iterdir()) == []


def test_our_own_files_keep_their_mode(tmp_path: Path, image: HostImage) -> None:
    root = tmp_path / "root"
    make_root(root, image)
    agent = root / "opt/stockade/stockade-agent"
    assert agent.read_text() == "agent"
    assert agent.stat().st_mode & 0o777 == 0o755


def test_no_user_of_the_hosts_is_told_inside(tmp_path: Path, image: HostImage) -> None:
    root = tmp_path / "root"
    make_root(root, image)
    lines = (root / "etc/passwd").read_text().splitlines()
    assert [line.split(":")[0] for line in lines] == ["root", "guest"]
    assert not (root / "etc/shadow").exists()


def test_a_root_is_made_once(tmp_path: Path, image: HostImage) -> None:
    """Into a folder that has something in it nothing is laid out."""
    make_root(tmp_path / "root", image)
    with pytest.raises(FileExistsError):
        make_root(tmp_path / "root", image)


def test_the_agent_boots_with_the_disk_and_the_modules(tmp_path: Path) -> None:
    process = configuration(tmp_path, "json", "numpy")["process"]
    assert process["args"] == ["/opt/stockade/stockade-agent", "boot", "1234", "0", "json", "numpy"]
    assert process["env"] == []
    assert process["terminal"] is False


def test_all_that_is_mounted_of_the_host_is_read_only(tmp_path: Path) -> None:
    specification = configuration(tmp_path)
    assert specification["root"] == {"path": str(tmp_path / "root"), "readonly": True}
    binds = [mount for mount in specification["mounts"] if mount["type"] == "bind"]
    assert [mount["destination"] for mount in binds] == ["/usr"]
    for mount in binds:
        assert {"ro", "nosuid", "nodev"} <= set(mount["options"])


def test_the_namespaces_are_new_ones(tmp_path: Path) -> None:
    """None has a path, which would be another's to join; none is left out."""
    namespaces = configuration(tmp_path)["linux"]["namespaces"]
    assert {namespace["type"] for namespace in namespaces} >= {
        "pid", "mount", "uts", "ipc", "network",
    }  # fmt: skip
    assert all(set(namespace) == {"type"} for namespace in namespaces)


def test_the_rights_are_those_of_the_set_up_alone(tmp_path: Path) -> None:
    process = configuration(tmp_path)["process"]
    assert process["noNewPrivileges"] is True
    assert set(process["capabilities"]) <= {"bounding", "effective", "permitted"}
    for rights in process["capabilities"].values():
        assert not {"CAP_NET_RAW", "CAP_SYS_PTRACE", "CAP_SYS_MODULE", "CAP_MKNOD"} & set(rights)


def test_a_bundle_is_written_once(tmp_path: Path) -> None:
    configuration(tmp_path)
    with pytest.raises(FileExistsError):
        configuration(tmp_path)

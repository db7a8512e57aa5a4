"""Packages from an index of the test's own, into sandboxes."""

import base64
import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from stockade.executor.local import open_local
from stockade.packages import (
    Indexes,
    Installer,
    InstallFailed,
    PackageStore,
    Recipe,
    WithPackages,
)
from stockade.port import (
    Command,
    ExecutionEnvironment,
    ExecutionRequest,
    PythonSource,
    SandboxRequest,
    Tier,
)

pytestmark = [
    pytest.mark.tier("namespace"),
    pytest.mark.skipif(
        not Path("/usr/lib/python3/dist-packages/pip").is_dir(), reason="the image has no pip"
    ),
]

# An address that no program leaves the proxy out for.
HERE = "127.1.2.3"
SANDBOX = SandboxRequest(tier=Tier.NAMESPACE)
OTHER = SandboxRequest(tier=Tier.NAMESPACE, tenant="other")


def wheel(name: str, files: dict[str, bytes]) -> bytes:
    """A wheel, with links where a content begins with ``->``."""
    about = f"{name}-1.0.dist-info"
    files = {
        **files,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(content)}")
    files[f"{about}/RECORD"] = "\n".join([*lines, f"{about}/RECORD,,"]).encode()
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w") as archive:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path)
            if content.startswith(b"->"):
                entry.external_attr = 0o120777 << 16
                content = content[2:]
            archive.writestr(entry, content)
    return found.getvalue()


def source_distribution(name: str) -> bytes:
    """One whose setup.py leaves a trace."""
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w:gz") as archive:
        for path, text in (
            (f"{name}-1.0/setup.py", "raise SystemExit('it ran')"),
            (f"{name}-1.0/PKG-INFO", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"),
        ):
            entry = tarfile.TarInfo(path)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return found.getvalue()


def npm_package(name: str) -> bytes:
    """A tarball, with a script that would run at installation."""
    found = io.BytesIO()
    about = {
        "name": name,
        "version": "1.0.0",
        "main": "index.js",
        "scripts": {"install": "echo ran > /workspace/.packages/script-ran"},
    }
    with tarfile.open(fileobj=found, mode="w") as archive:
        for path, text in (
            ("package/package.json", json.dumps(about)),
            ("package/index.js", "module.exports = () => 'from npm'"),
        ):
            entry = tarfile.TarInfo(path)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return gzip.compress(found.getvalue(), mtime=0)


class Index:
    """A Python index and an npm registry."""

    def __init__(self) -> None:
        self.files = {
            "good-1.0-py3-none-any.whl": wheel("good", {"good.py": b"VALUE = 'good'"}),
            "evil-1.0-py3-none-any.whl": wheel(
                "evil",
                {
                    "evil/__init__.py": b"",
                    "evil/link": b"->/etc/passwd",
                    "evil/CON": b"x",
                    "evil/a\nb": b"x",
                },
            ),
            "sourced-1.0.tar.gz": source_distribution("sourced"),
        }
        self.tarball = npm_package("nice")
        self.asked: list[str] = []
        self.port = 0

    def answer(self, path: str) -> tuple[str, bytes] | None:
        self.asked.append(path)
        name = path.strip("/").rpartition("/")[2]
        if path.startswith("/simple/"):
            links = [
                f'<a href="/files/{each}">{each}</a>'
                for each in self.files
                if each.startswith(f"{name}-")
            ]
            return ("text/html", "<br>".join(links).encode()) if links else None
        if path.startswith("/files/"):
            return "application/octet-stream", self.files[name]
        if path == "/nice":
            digest = base64.b64encode(hashlib.sha512(self.tarball).digest()).decode()
            version = {
                "name": "nice",
                "version": "1.0.0",
                "dist": {
                    "tarball": f"http://{HERE}:{self.port}/nice/-/nice-1.0.0.tgz",
                    "integrity": f"sha512-{digest}",
                },
                "scripts": {"install": "x"},
                "hasInstallScript": True,
            }
            about = {
                "name": "nice",
                "dist-tags": {"latest": "1.0.0"},
                "versions": {"1.0.0": version},
            }
            return "application/json", json.dumps(about).encode()
        if path == "/nice/-/nice-1.0.0.tgz":
            return "application/octet-stream", self.tarball
        return None


@pytest.fixture
def index() -> Iterator[Index]:
    found = Index()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = found.answer(self.path)
            kind, body = answer or ("text/plain", b"there is none")
            self.send_response(200 if answer else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((HERE, 0), Handler)
    found.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
async def environment() -> AsyncIterator[ExecutionEnvironment]:
    async with open_local(warm=False, tiers={Tier.NAMESPACE}) as opened:
        yield opened


@pytest.fixture
def store(tmp_path: Path) -> PackageStore:
    return PackageStore(tmp_path / "packages")


def indexes(index: Index) -> Indexes:
    base = f"http://{HERE}:{index.port}"
    return Indexes(python=f"{base}/simple", python_files=(), node=base)


def python(index: Index, text: str) -> Recipe:
    return Recipe(python=text.encode(), indexes=indexes(index))


async def test_installed_once_and_used_without_a_network(
    index: Index, environment: ExecutionEnvironment, store: PackageStore
) -> None:
    installer = Installer(environment, store)
    found = await installer.prepare(python(index, "good\n"), SANDBOX)
    asked = len(index.asked)
    assert asked
    assert await installer.prepare(python(index, "good\n"), SANDBOX) == found
    assert len(index.asked) == asked
    program = (
        "import good, os, socket, sys\n"
        "print(good.VALUE, good.__file__)\n"
        "print(sorted(name for name in os.environ if 'proxy' in name.lower()))\n"
        "try: socket.create_connection(('127.0.0.1', 3128), 2); print('open')\n"
        "except OSError as error: print('closed')\n"
        "open(good.__file__, 'w').write('VALUE = 1')\n"
    )
    with_packages = WithPackages(environment, store, found)
    for _ in range(2):  # what one program changes, no other sees
        execution = await with_packages.run(ExecutionRequest(PythonSource(program)), SANDBOX)
        assert execution.ok, execution
        first, variables, connected = execution.stdout.text().splitlines()
        assert first == "good /workspace/.packages/python/good.py"
        assert (variables, connected) == ("[]", "closed")
        assert execution.egress is None


async def test_another_tenant_installs_its_own(
    index: Index, environment: ExecutionEnvironment, store: PackageStore
) -> None:
    installer = Installer(environment, store)
    await installer.prepare(python(index, "good\n"), SANDBOX)
    asked = len(index.asked)
    await installer.prepare(python(index, "good\n"), OTHER)
    assert len(index.asked) > asked


async def test_anew_resolves_again(
    index: Index, environment: ExecutionEnvironment, store: PackageStore
) -> None:
    installer = Installer(environment, store)
    await installer.prepare(python(index, "good\n"), SANDBOX)
    index.files["good-1.0-py3-none-any.whl"] = wheel("good", {"good.py": b"VALUE = 'newer'"})
    found = await installer.prepare(python(index, "good\n"), SANDBOX, anew=True)
    with_packages = WithPackages(environment, store, found)
    request = ExecutionRequest(PythonSource("import good; print(good.VALUE)"))
    assert (await with_packages.run(request, SANDBOX)).stdout.text() == "newer\n"


@pytest.mark.parametrize(
    ("text", "denied"),
    [
        ("absent\n", ()),
        ("good @ http://127.9.9.9:81/good-1.0-py3-none-any.whl\n", ("127.9.9.9:81",)),
        ("--extra-index-url http://other.example/simple\ngood\n", ("other.example:80",)),
    ],
)
async def test_what_cannot_be_installed_is_said_and_not_kept(
    index: Index,
    environment: ExecutionEnvironment,
    store: PackageStore,
    tmp_path: Path,
    text: str,
    denied: tuple[str, ...],
) -> None:
    try:
        await Installer(environment, store).prepare(python(index, text), SANDBOX)
    except InstallFailed as failed:
        use = failed.execution.egress
        assert use is not None
        assert {each.destination for each in use.denied} == set(denied)
        assert list((tmp_path / "packages").glob("*/sets/*")) == []
    else:
        # pip goes on without an index that it cannot reach; nothing of that index came.
        assert "extra-index-url" in text


async def test_nothing_of_a_package_runs_while_it_is_installed(
    index: Index, environment: ExecutionEnvironment, store: PackageStore
) -> None:
    installer = Installer(environment, store)
    with pytest.raises(InstallFailed) as failed:
        await installer.prepare(python(index, "sourced\n"), SANDBOX)
    assert "it ran" not in str(failed.value)
    with pytest.raises(InstallFailed) as failed:
        await installer.prepare(python(index, "sourced\n").with_scripts(), SANDBOX)


async def test_a_hostile_package_stays_in_its_sandbox(
    index: Index, environment: ExecutionEnvironment, store: PackageStore, tmp_path: Path
) -> None:
    try:
        found = await Installer(environment, store).prepare(python(index, "evil\n"), SANDBOX)
    except InstallFailed:
        return  # pip itself would have none of it
    # On the host there is one file, whatever the package is made of.
    (kept,) = (tmp_path / "packages").glob("*/sets/*")
    assert kept.name == found.digest
    with_packages = WithPackages(environment, store, found)
    request = ExecutionRequest(Command(("cat", "/workspace/.packages/python/evil/link")))
    execution = await with_packages.run(request, SANDBOX)
    assert b"root:" not in execution.stdout.content


@pytest.mark.skipif(not Path("/usr/bin/npm").exists(), reason="the image has no npm")
async def test_packages_of_npm(
    index: Index, environment: ExecutionEnvironment, store: PackageStore
) -> None:
    recipe = Recipe(node=b'{"dependencies": {"nice": "1.0.0"}}', indexes=indexes(index))
    found = await Installer(environment, store).prepare(recipe, SANDBOX)
    with_packages = WithPackages(environment, store, found)
    program = (
        "const fs = require('fs'); console.log(require('nice')());"
        "console.log(fs.existsSync('/workspace/.packages/script-ran'))"
    )
    execution = await with_packages.run(ExecutionRequest(Command(("node", "-e", program))), SANDBOX)
    assert execution.stdout.text() == "from npm\nfalse\n", execution


def test_the_command_installs_and_runs(index: Index, tmp_path: Path) -> None:
    """``run --requirements``: once with a network for the index, then without any."""
    (tmp_path / "r.txt").write_text("good\n")
    (tmp_path / "p.py").write_text("import good; print(good.VALUE)\n")
    url = f"http://{HERE}:{index.port}/simple"
    options = ["--tier", "namespace", "--requirements", "r.txt", "--index-url", url]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def stockade_run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "stockade.cli.main", "run", *options, "p.py"],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    for _ in range(2):
        ended = stockade_run()
        assert (ended.returncode, ended.stdout) == (0, "good\n"), ended.stderr
    assert index.asked.count("/simple/good/") == 1
    (tmp_path / "r.txt").write_text("missing\n")
    ended = stockade_run()
    assert ended.returncode != 0
    assert "missing" in ended.stderr

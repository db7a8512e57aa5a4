"""Debian's packages, by apt with folders of its own.

The system's packages, lists and sources stay as they are, and no root is needed. Its mirror,
proxy, passwords and keys serve: an archive without Debian's signature is refused by apt.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote

from stockade.images.commands import run
from stockade.images.errors import CannotBuild

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# 13 first: its kernel tells a clone that it is one (vmgenid), and its QEMU is recent.
SUITES = ("trixie", "bookworm")

_TOOLS = ("apt-get", "dpkg-deb", "tar")
_SECONDS = 300.0
_MOST_BYTES = 2 << 30
_MOST_MIRRORS = 3
_PACKAGE = re.compile(r"'[^']+' ([^ _]+)_([^ _]+)_([^ _]+)\.deb (\d+) SHA256:([0-9a-f]{64})")
_SOURCE = re.compile(r"([a-z]+)(-security)?")
_DEBIAN = {"stable", "oldstable", "oldoldstable", "testing", "unstable", "sid"}
# Debian's own names are all of this form; a `-` or `+` at the end of another asks apt for more.
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+]")


@dataclass(frozen=True, slots=True)
class Package:
    """One that the archive has, by its content."""

    name: str
    version: str
    architecture: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Mirrors:
    """Where this system gets Debian from."""

    main: tuple[str, ...]
    security: tuple[str, ...]


class Archive:
    """One suite of Debian, with its index read."""

    def __init__(self, suite: str, scratch: Path) -> None:
        self.suite = suite
        self._scratch = scratch

    def resolve(self, names: Sequence[str]) -> list[Package]:
        """These packages and all that they depend on, by name; none is fetched."""
        check_names(names)
        options = ("-y", "--no-install-recommends", "-o", "Acquire::ForceHash=SHA256")
        said = self._apt("install", "--print-uris", *options, *names)
        packages = [
            Package(name, unquote(version), architecture, int(size), digest)
            for name, version, architecture, size, digest in _PACKAGE.findall(said)
        ]
        if not packages:
            raise CannotBuild(f"Debian {self.suite} has nothing for: {' '.join(names)}")
        return sorted(packages, key=lambda package: (package.name, package.architecture))

    def fetch(self, packages: Sequence[Package], cache: Path) -> dict[Package, Path]:
        """Each as a file that nobody else can change, with its digest checked.

        What the cache has is not fetched anew.
        """
        size = sum(package.size for package in packages)
        if size > _MOST_BYTES:
            raise CannotBuild(
                f"the packages are {size >> 20} MiB, and {_MOST_BYTES >> 20} the most"
            )
        cache.mkdir(parents=True, exist_ok=True)
        paths = _places(packages, cache)
        absent = [package for package in packages if not _is(package, paths[package])]
        if absent:
            folder = self._scratch / "deb"
            _empty(folder)
            wanted = [f"{each.name}:{each.architecture}={each.version}" for each in absent]
            # It writes into the current folder only.
            self._apt("download", *(each.replace(":all=", "=") for each in wanted), folder=folder)
            self._keep(absent, folder, paths)
        return paths

    def _keep(self, packages: Sequence[Package], folder: Path, paths: dict[Package, Path]) -> None:
        fetched = {_file_digest(path): path for path in folder.glob("*.deb")}
        for package in packages:
            path = fetched.get(package.sha256)
            if path is None:
                raise CannotBuild(
                    f"what the mirror sent as {package.name} {package.version} is not the file that "
                    "its signed index names: refused"
                )
            fresh = paths[package].with_suffix(".new")
            shutil.copyfile(path, fresh)
            if not _is(package, fresh):
                raise CannotBuild(f"{path} changed while it was read: refused")
            fresh.replace(paths[package])

    def _apt(self, *words: str, folder: Path | None = None) -> str:
        configuration = ("-c", str(self._scratch / "apt.conf"))
        return run(["apt-get", *configuration, "-q", *words], seconds=_SECONDS, folder=folder)


def find_cached(packages: Sequence[Package], cache: Path) -> dict[Package, Path] | None:
    """What the cache has, with digests checked; nothing unless it has all."""
    paths = _places(packages, cache)
    return paths if all(_is(package, path) for package, path in paths.items()) else None


def _places(packages: Sequence[Package], cache: Path) -> dict[Package, Path]:
    return {package: cache / f"{package.sha256}.deb" for package in packages}


def check_names(names: Sequence[str]) -> None:
    """Refuse what apt would take for more than the name of a package."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise CannotBuild(f"{name!r} is no name of a Debian package")


@contextmanager
def open_archive(architecture: str, mirror: str | None = None) -> Iterator[Archive]:
    """The first suite of :data:`SUITES` that can be had, from ``mirror`` or the system's own."""
    for tool in _TOOLS:
        if shutil.which(tool) is None:
            raise CannotBuild(f"there is no {tool}: images are built on Debian and its like only")
    if not KEYRING.exists():
        raise CannotBuild(f"{KEYRING} is missing: apt-get install debian-archive-keyring")
    mirrors = Mirrors((mirror,), ()) if mirror else find_mirrors()
    # Not below the cache: as root, apt reads what strangers send as its own user, who must get
    # here.
    with TemporaryDirectory(prefix="stockade-apt.") as name:
        scratch = Path(name)
        scratch.chmod(0o711)
        yield _first_suite(scratch, architecture, mirrors)


def _first_suite(scratch: Path, architecture: str, mirrors: Mirrors) -> Archive:
    reasons = []
    for suite in SUITES:
        for main in mirrors.main:
            # With what was repaired since the last point release, where the system has that too.
            for security in (*mirrors.security[:1], None):
                _configure(scratch, architecture, suite, main, security)
                archive = Archive(suite, scratch)
                try:
                    archive._apt("update")  # noqa: SLF001
                    archive.resolve(["base-files"])
                except CannotBuild as error:
                    reasons.append(str(error))
                else:
                    return archive
    raise CannotBuild(f"no suite of Debian can be had ({', '.join(SUITES)}): {reasons[0]}")


def find_mirrors() -> Mirrors:
    """Read where apt gets Debian from, in sources of the old style and the new.

    First those whose origin is known; then, as after an installation that fetched no list yet,
    those that may be it. A stranger's archive among them has not Debian's signature.
    """
    main: dict[str, None] = {}
    security: dict[str, None] = {}
    for known in ("true", "false"):
        said = run(
            [
                *("apt-get", "indextargets", "-o", f"APT::Get::IndexTargets::ReleaseInfo={known}"),
                *("--format", "$(ORIGIN)|$(RELEASE)|$(REPO_URI)", "Created-By: Packages"),
            ],
            seconds=_SECONDS,
        )
        for line in said.splitlines():
            origin, _, rest = line.partition("|")
            release, _, address = rest.partition("|")
            matched = _SOURCE.fullmatch(release)
            # apt leaves the name of what it does not know.
            if origin.lower() not in ("debian", "$(origin)") or address.startswith("cdrom:"):
                continue
            if matched and matched[1] in _DEBIAN | _codenames():
                (security if matched[2] else main)[address] = None
    if not main:
        raise CannotBuild(
            "the system's package sources name no archive of Debian: name one with --mirror"
        )
    return Mirrors(tuple(main)[:_MOST_MIRRORS], tuple(security)[:_MOST_MIRRORS])


def _codenames() -> set[str]:
    """What Debian calls the suites here, and this system if it is one."""
    release = Path("/etc/os-release")
    text = release.read_text(errors="replace") if release.exists() else ""
    values = dict(re.findall(r'^(ID|VERSION_CODENAME)="?([a-z]+)"?$', text, re.MULTILINE))
    own = {values.get("VERSION_CODENAME", "")} if values.get("ID") == "debian" else set()
    return {*SUITES, *own} - {""}


def _configure(
    scratch: Path, architecture: str, suite: str, main: str, security: str | None
) -> None:
    for name in ("lists/partial", "archives/partial", "deb"):
        _empty(scratch / name)
    (scratch / "status").write_text("")
    options = f"[arch={architecture} target=Packages signed-by={KEYRING}]"
    sources = [f"deb {options} {main} {suite} main\n"]
    if security:
        sources.append(f"deb {options} {security} {suite}-security main\n")
    (scratch / "sources.list").write_text("".join(sources))
    # The hooks are for the system's own lists, and preferences for what it installs.
    (scratch / "apt.conf").write_text(
        f"""Dir::Etc::SourceList "{scratch}/sources.list";
Dir::Etc::SourceParts "-";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "-";
Dir::State "{scratch}";
Dir::State::Lists "{scratch}/lists";
Dir::State::Status "{scratch}/status";
Dir::Cache "{scratch}";
Dir::Cache::Archives "{scratch}/archives";
Dir::Cache::pkgcache "pkgcache.bin";
Dir::Cache::srcpkgcache "";
APT::Architecture "{architecture}";
APT::Architectures "{architecture}";
Acquire::Languages "none";
Acquire::Retries "1";
Acquire::http::Timeout "20";
Acquire::https::Timeout "20";
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
"""
    )


def _empty(folder: Path) -> None:
    """Make it anew. Root's apt drops its rights; what it writes must belong to whom it becomes."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if os.geteuid() == 0:
        try:
            shutil.chown(folder, "_apt")
        except LookupError:
            pass  # an apt without a user of its own keeps its rights


def _is(package: Package, path: Path) -> bool:
    return (
        path.is_file()
        and path.stat().st_size == package.size
        and _file_digest(path) == package.sha256
    )


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

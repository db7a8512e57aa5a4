"""A sandbox whose policy allows one destination by its name, which a resolver made up leads to."""

import io
import ssl
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from ipaddress import ip_address
from pathlib import Path

import pytest
import pytest_asyncio
import trustme

from stockade.egress import ResolveFailed
from stockade.egress.names import Address
from stockade.egress.resolving import SystemResolver
from stockade.executor.local import open_local
from stockade.port import (
    GIB,
    Command,
    EgressPolicy,
    EgressRule,
    Execution,
    ExecutionRequest,
    Limits,
    SandboxRequest,
    Session,
    Tier,
)

from .origin import ALLOWED, Origin, serving

PROGRAMS = Path(__file__).parent / "programs"
# Pure Python where it has to be, so that it serves whatever Python the image has.
LIBRARIES = (
    *("aiohappyeyeballs", "aiohttp", "aiosignal", "anyio", "attr", "attrs", "certifi"),
    *("charset_normalizer", "frozenlist", "h11", "httpcore", "httpx", "idna", "multidict"),
    *("propcache", "requests", "urllib3", "websockets", "yarl", "typing_extensions.py"),
)

Run = Callable[..., Awaitable[Execution]]


@pytest.fixture(scope="package")
def authority() -> trustme.CA:
    """Signs the destination's certificate."""
    return trustme.CA()


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def origin(
    authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Origin]:
    """The destination."""
    certificate = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(ALLOWED).configure_cert(certificate)
    async with serving(certificate, tmp_path_factory.mktemp("origin")) as found:
        yield found


@pytest.fixture(scope="package")
def libraries() -> bytes:
    """The Python clients, as one file for a program's path."""
    import requests

    site = Path(requests.__file__).parents[1]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in LIBRARIES:
            place = site / name
            for file in [place] if place.is_file() else sorted(place.rglob("*")):
                if file.suffix in (".py", ".pem", ".typed"):
                    archive.write(file, file.relative_to(site))
    return packed.getvalue()


TIERS = [
    pytest.param(tier, marks=pytest.mark.tier(tier.value), id=tier.value)
    for tier in (Tier.NAMESPACE, Tier.GVISOR)
]


@pytest_asyncio.fixture(scope="package", loop_scope="package", params=TIERS)
async def session(
    request: pytest.FixtureRequest,
    origin: Origin,
    authority: trustme.CA,
    libraries: bytes,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Session]:
    """What the machine trusts, a sandbox's programs trust by the usual variables."""

    async def resolve(_: SystemResolver, name: str) -> Sequence[Address]:
        if name != ALLOWED:
            raise ResolveFailed(f"{name} was asked for, and no rule has it")
        return [ip_address("127.0.0.1")]

    trusted = tmp_path_factory.mktemp("trusted") / "certificates.pem"
    authority.cert_pem.write_to_path(trusted)
    policy = EgressPolicy(tuple(EgressRule.parse(f"{url} in 127.0.0.0/8") for url in origin.urls))
    wanted = SandboxRequest(
        tier=request.param,
        egress=policy,
        limits=Limits(
            memory_bytes=GIB, processes=256, open_files=1024, wall_seconds=100, cpu_seconds=100
        ),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SystemResolver, "resolve", resolve)
        patch.setenv("SSL_CERT_FILE", str(trusted))
        async with open_local(warm=False, tiers={request.param}) as environment:
            opened = await environment.open_session(wanted)
            async with opened:
                await opened.write_file("libraries.zip", libraries)
                for program in PROGRAMS.iterdir():
                    if program.is_file():
                        await opened.write_file(program.name, program.read_bytes())
                yield opened


@pytest.fixture
def run(session: Session) -> Run:
    """Run a program of the image; its two streams together are what a person would see."""

    async def it(*argv: str, **environment: str) -> Execution:
        return await session.run(ExecutionRequest(Command(argv), environment=environment))

    return it

"""TLS: who is believed, and who is shown a certificate."""

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from stockade.client import open_remote
from stockade.port import (
    Execution,
    ExecutionRequest,
    InvalidRequest,
    Outcome,
    PythonSource,
    Unavailable,
)

from .peer import Exchange, serving
from .test_faults import HURRIED

pytestmark = [
    pytest.mark.plain_user,
    pytest.mark.asyncio,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates"),
]

PROGRAM = ExecutionRequest(PythonSource("1"))
OK = Execution(Outcome.OK, "", exit_code=0)


async def play(exchange: Exchange) -> None:
    await exchange.record(OK)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``good`` for 127.0.0.1, ``other`` for another name, ``client``: each its own authority."""
    folder = tmp_path_factory.mktemp("certificates")
    for name, host in (("good", "IP:127.0.0.1"), ("other", "DNS:x.example"), ("client", "DNS:c")):
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"),
                *("ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", f"/CN={name}"),
                *("-addext", f"subjectAltName={host}"),
                *("-keyout", folder / f"{name}.key", "-out", folder / f"{name}.pem"),
            ],
            check=True,
            capture_output=True,
        )
        both = (folder / f"{name}.pem").read_text() + (folder / f"{name}.key").read_text()
        (folder / f"{name}-both.pem").write_text(both)
    return folder


def server(folder: Path, name: str, *, client: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    if client:
        context.load_verify_locations(folder / "client.pem")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def test_an_authority_of_ones_own(certificates: Path) -> None:
    async with (
        serving(play, ssl=server(certificates, "good")) as peer,
        open_remote(peer.url, key="k", ca=certificates / "good.pem", timeouts=HURRIED) as stockade,
    ):
        for _ in range(3):
            assert await stockade.run(PROGRAM) == OK
        assert peer.connections == 1


@pytest.mark.parametrize("trusted", [None, "other", "client"])
async def test_another_certificate_is_never_believed(
    certificates: Path, trusted: str | None
) -> None:
    """Neither one that nobody vouches for, nor one for another name; and the key is not sent."""
    name = "other" if trusted == "other" else "good"
    ca = None if trusted is None else certificates / f"{trusted}.pem"
    async with (
        serving(play, ssl=server(certificates, name)) as peer,
        open_remote(peer.url, key="k", ca=ca, timeouts=HURRIED) as stockade,
    ):
        with pytest.raises(
            Unavailable, match=r"cannot be reached: its certificate is not believed: "
        ):
            await stockade.run(PROGRAM)
        assert peer.asked == []


@pytest.mark.parametrize("pair", [True, False])
async def test_a_certificate_is_shown_where_one_is_demanded(certificates: Path, pair: bool) -> None:
    shown = (
        (certificates / "client.pem", certificates / "client.key")
        if pair
        else certificates / "client-both.pem"
    )
    ca = certificates / "good.pem"
    async with serving(play, ssl=server(certificates, "good", client=True)) as peer:
        async with open_remote(
            peer.url, key="k", ca=ca, client_certificate=shown, timeouts=HURRIED
        ) as stockade:
            assert await stockade.run(PROGRAM) == OK
        for other in (None, certificates / "other-both.pem"):
            async with open_remote(
                peer.url, key="k", ca=ca, client_certificate=other, timeouts=HURRIED
            ) as stockade:
                # In TLS 1.3 the refusal comes behind the handshake, or is lost on its way: then
                # nobody here can know that nothing ran.
                try:
                    execution = await stockade.run(PROGRAM)
                except Unavailable as refused:
                    assert "certificate" in str(refused)  # noqa: PT017 - or none is raised
                else:
                    assert execution.outcome is Outcome.LOST
        assert len(peer.asked) == 1


async def test_plain_http_is_no_tls(certificates: Path) -> None:
    async with (
        serving(play) as peer,
        open_remote(peer.url.replace("http", "https"), key="k", timeouts=HURRIED) as stockade,
    ):
        with pytest.raises(Unavailable, match="cannot be reached"):
            await stockade.run(PROGRAM)


@pytest.mark.parametrize("field", ["ca", "client_certificate"])
@pytest.mark.parametrize("content", [None, "", "-----BEGIN CERTIFICATE-----\nx\n"])
async def test_a_file_that_holds_no_certificate_is_refused(
    tmp_path: Path, field: str, content: str | None
) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidRequest) as error:
        async with open_remote("https://x", key="k", **{field: path}):  # type: ignore[arg-type]
            pass
    assert error.value.field == field


async def test_a_unix_socket(tmp_path: Path) -> None:
    async with (
        serving(play, path=str(tmp_path / "s.sock")) as peer,
        open_remote(peer.url, key="k", timeouts=HURRIED) as stockade,
    ):
        assert await stockade.run(PROGRAM) == OK
    async with open_remote(peer.url, key="k", timeouts=HURRIED) as stockade:
        with pytest.raises(
            Unavailable, match=r"cannot be reached: (No such file|Connection refused)"
        ):
            await stockade.run(PROGRAM)

"""Real clients, as they come, in real sandboxes: what is allowed works, what is denied is told."""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.contract.kit import explain

from stockade.port import Execution, Outcome

from .conftest import TIERS, Run
from .origin import DENIED, Origin

pytestmark = pytest.mark.asyncio(loop_scope="package")


def needs(*programs: str) -> pytest.MarkDecorator:
    """Sandboxes have the programs of this machine."""
    absent = [each for each in programs if shutil.which(each, path="/usr/bin:/bin") is None]
    return pytest.mark.skipif(bool(absent), reason=f"the image has no {', '.join(absent)}")


needs_pip = pytest.mark.skipif(
    not Path("/usr/lib/python3/dist-packages/pip").is_dir(), reason="the image has no pip"
)
# Programs that take seconds to start where each call of theirs goes through a kernel more.
namespace_alone = pytest.mark.parametrize("session", TIERS[:1], indirect=True)


def lines(execution: Execution) -> list[str]:
    return execution.stdout.text().splitlines()


def denied(execution: Execution) -> set[str]:
    assert execution.egress is not None
    return {each.destination for each in execution.egress.denied}


def everything(origin: Origin) -> list[str]:
    """Allowed over HTTP and HTTPS, and then denied likewise."""
    return [f"{url}/greeting" for url in (*origin.urls, *origin.denied_urls)]


def check(
    execution: Execution,
    origin: Origin,
    *,
    answer: str = "hello",
    told: int = 2,
    said: Sequence[str] | None = None,
) -> None:
    """Four lines, as of ``everything``; the first ``told`` denials name the missing rule."""
    assert execution.exit_code == 0, explain(execution)
    said = lines(execution) if said is None else said
    assert [each.partition(" ")[2] for each in said[:2]] == [answer, answer], explain(execution)
    ports = (origin.http, origin.https)
    assert len(said) == 4
    for line in said[2:]:
        assert answer not in line
        assert "403" in line or "no rule allows" in line
    for line, port in zip(said[2 : 2 + told], ports, strict=False):
        assert f"--allow {DENIED}:{port} would allow it" in line
    assert denied(execution) == {f"{DENIED}:{port}" for port in ports}


@pytest.mark.parametrize("library", ["urllib", "requests", "httpx", "aiohttp"])
async def test_python(run: Run, origin: Origin, library: str) -> None:
    execution = await run("python3", "python_client.py", library, *everything(origin))
    check(execution, origin)


async def test_websockets(run: Run, origin: Origin) -> None:
    execution = await run("python3", "python_client.py", "websockets", *everything(origin))
    check(execution, origin, answer="heard hello True", told=0)


@needs("curl")
async def test_curl(run: Run, origin: Origin) -> None:
    plain, secure = origin.urls
    line = f"""
set -e
get() {{ curl --silent --show-error --max-time 60 "$@"; }}
for url in {plain}/greeting {secure}/greeting; do
  get $url; echo " by the variables"
  get --proxy http://127.0.0.1:3128 $url; echo " by -x"
  get --proxy socks5h://127.0.0.1:3128 $url; echo " by SOCKS"
  get --noproxy '' --proxy '' --socks5-hostname 127.0.0.1:3128 $url; echo " by --socks5-hostname"
done
head -c 3000000 /dev/zero | get --data-binary @- {secure}/echo | wc -c
head -c 3000000 /dev/zero | get --header "Transfer-Encoding: chunked" --data-binary @- {plain}/echo | wc -c
"""
    execution = await run("sh", "-c", line)
    ways = ["hello by the variables", "hello by -x", "hello by SOCKS", "hello by --socks5-hostname"]
    assert lines(execution) == [*ways, *ways, "3000000", "3000000"], explain(execution)
    assert denied(execution) == set()


@needs("curl")
async def test_curl_is_refused(run: Run, origin: Origin) -> None:
    plain, secure = origin.denied_urls
    line = f"""
get() {{ curl --silent --show-error --max-time 60 "$@" 2>&1; echo "exit $?"; }}
get {plain}/greeting
get --verbose {secure}/greeting
get --socks5-hostname 127.0.0.1:3128 {secure}/greeting
"""
    execution = await run("sh", "-c", line)
    said = execution.stdout.text()
    by_http, by_connect, by_socks, _ = said.split("exit ")
    assert f"--allow {DENIED}:{origin.http} would allow it" in by_http
    assert f"--allow {DENIED}:{origin.https} would allow it" in by_connect
    assert "X-Stockade-Egress: no-rule" in by_connect
    assert "(2)" in by_socks  # not allowed by the rule set: all that SOCKS can say
    assert denied(execution) == {f"{DENIED}:{origin.http}", f"{DENIED}:{origin.https}"}


@needs("git")
@namespace_alone
async def test_git(run: Run, origin: Origin) -> None:
    repository = origin.repository
    await on_host(
        f"rm -rf {repository} && git init -q --bare -b main {repository} && "
        f"git -C {repository} config http.receivepack true"
    )
    secure = origin.urls[1]
    line = f"""
set -e
rm -rf work; git clone -q {secure}/git/repository.git work 2>&1; cd work
git checkout -q -b main
head -c 2000000 /dev/urandom > large; git add large
git -c user.name=a -c user.email=a@example.com commit -q -m first
git push -q origin main
cd ..; rm -rf again; git clone -q {secure}/git/repository.git again
cmp work/large again/large && echo the same
git clone -q {origin.denied_urls[1]}/git/repository.git denied 2>&1 || echo refused
GIT_CURL_VERBOSE=1 git ls-remote {origin.denied_urls[1]}/git/repository.git 2>&1 |
  grep -o -m1 -e '--allow .* would allow it'
"""
    execution = await run("sh", "-c", line)
    said = lines(execution)
    assert "the same" in said, explain(execution)
    assert said[-2:] == ["refused", f"--allow {DENIED}:{origin.https} would allow it"], said
    assert any("403" in each for each in said)
    assert denied(execution) == {f"{DENIED}:{origin.https}"}
    pushed = await on_host(f"git -C {repository} log --format=%s main")
    assert pushed == "first\n"


async def on_host(line: str) -> str:
    running = await asyncio.create_subprocess_exec("sh", "-c", line, stdout=asyncio.subprocess.PIPE)
    said, _ = await running.communicate()
    assert running.returncode == 0, line
    return said.decode()


@needs("node")
@pytest.mark.parametrize("way", ["fetch", "https"])
async def test_node(run: Run, origin: Origin, way: str) -> None:
    execution = await run("node", "node_client.js", way, *everything(origin))
    check(execution, origin)


@needs("npm")
@namespace_alone
async def test_npm(run: Run, origin: Origin) -> None:
    for url in (origin.urls[1], origin.denied_urls[1]):
        execution = await run(
            *("npm", "install", "--no-audit", "--no-fund", "--fetch-retries=0", "--cache=/tmp/npm"),
            *("--prefix=/workspace/npm", f"--registry={url}/npm", "nice"),
        )
        said = execution.stdout.text() + execution.stderr.text()
        if url == origin.urls[1]:
            assert execution.ok, explain(execution)
            assert "added 1 package" in said
        else:
            assert execution.outcome is Outcome.EGRESS_DENIED
            assert "403" in said
            assert f"--allow {DENIED}:{origin.https} would allow it" in execution.detail


@needs("java", "javac")
@namespace_alone
async def test_java(run: Run, origin: Origin) -> None:
    options = ("-Xshare:auto", "-XX:TieredStopAtLevel=1")
    execution = await run("java", *options, "Client.java", *everything(origin))
    assert "Picked up JAVA_TOOL_OPTIONS" in execution.stderr.text()
    clients = ["HttpClient", "HttpURLConnection"]
    told = dict(zip(clients, (1, 2), strict=True))  # of a tunnel HttpClient says "got: 403" alone
    for client in clients:
        said = [line for line in lines(execution) if line.startswith(f"{client} ")]
        check(execution, origin, told=told[client], said=said)


@needs_pip
@namespace_alone
async def test_pip(run: Run, origin: Origin) -> None:
    pip = ("python3", "-m", "pip", "install", "--no-cache-dir", "--retries", "1", "--target", "new")
    good = await run(*pip, "--index-url", f"{origin.urls[1]}/simple", "good")
    assert good.ok, explain(good)
    assert "Successfully installed good-1.0" in good.stdout.text()
    bad = await run(*pip, "--upgrade", "--index-url", f"{origin.denied_urls[1]}/simple", "good")
    assert bad.outcome is Outcome.EGRESS_DENIED
    said = bad.stdout.text() + bad.stderr.text()
    assert f"--allow {DENIED}:{origin.https} would allow it" in said, explain(bad)

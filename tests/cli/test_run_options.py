"""``stockade run``: what each option asks of the executor, and what bad input is told."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stockade.port import (
    Command,
    ExpressionSource,
    Limits,
    PythonScript,
    PythonSource,
    SandboxRequest,
    Tier,
    TrustLevel,
)
from stockade.port.fake import Call, Scripted, cat
from stockade.port.policy import STRENGTH

Stockade = Callable[..., Any]


def names(folder: str) -> list[str]:
    return sorted(entry.name for entry in Path(folder).iterdir())


# --- the program ---


def test_a_script_is_read_and_run_under_its_base_name(stockade: Stockade) -> None:
    Path("sub").mkdir()
    Path("sub/prog.py").write_bytes(b"print(1)")
    ended = stockade("run", "sub/prog.py", "-v", "--memory", "--", "x")
    assert ended.call.request.program == PythonScript(
        "prog.py", b"print(1)", ("-v", "--memory", "--", "x")
    )
    assert ended.call.request.files == {}
    assert ended[:4] == (0, b"", b"", "")


def test_code_takes_every_word_as_an_argument(stockade: Stockade) -> None:
    assert stockade("run", "-c", "1", "a.py", "-b").call.request.program == PythonSource(
        "1", ("a.py", "-b")
    )
    # As python3 does: behind the source there are no options of ours, known or not.
    for words in (("-x",), ("--verbose",), ("--", "-b"), ("--memory", "1"), ("-c", "2"), ("-",)):
        ended = stockade("run", "-c", "1", *words)
        assert ended.call.request.program == PythonSource("1", words)
        assert ended.said == ""
    # However it is spelled, and whatever is in front of it.
    for spelled in (
        ("-c1",),
        ("-vc", "1"),
        ("-vc1",),
        ("--env", "-c=1", "-c", "1"),
        ("--memory=1G", "--tier", "namespace", "-c1"),
        ("--no-tty", "-c", "1"),
    ):
        program = stockade("run", *spelled, "--json").call.request.program
        assert program == PythonSource("1", ("--json",))
    assert stockade("run", "-c", "--", "1").call.request.program == PythonSource("--", ("1",))
    assert stockade("run", "a.sh", "-c", "1").code == 66
    assert stockade("run", "-c", "").call.request.program == PythonSource("")
    assert stockade("run", "--fresh", "-c", "1").call.request.program.fresh


@pytest.mark.parametrize(
    ("name", "argv"),
    [
        ("a.js", ("node", "a.js", "-x")),
        ("a.mjs", ("node", "a.mjs", "-x")),
        ("a.sh", ("sh", "a.sh", "-x")),
        ("./-a.sh", ("sh", "./-a.sh", "-x")),
    ],
)
def test_other_scripts_go_into_the_workspace(
    stockade: Stockade, name: str, argv: tuple[str, ...]
) -> None:
    Path(name).write_bytes(b"text")
    request = stockade("run", name, "-x").call.request
    assert request.program == Command(argv)
    assert request.files == {name.removeprefix("./"): b"text"}


def test_dashes_name_a_program_of_the_image(stockade: Stockade) -> None:
    for options in ((), ("--timeout", "5"), ("--verbose",)):
        program = stockade("run", *options, "--", "prog.py", "--", "-c").call.request.program
        assert program == Command(("prog.py", "--", "-c"))


def test_a_dash_reads_source_from_standard_input(stockade: Stockade) -> None:
    async def reads(call: Call) -> Scripted:
        assert [piece async for piece in call.stdin] == []
        return Scripted()

    ended = stockade("run", "-", "-x", stdin=b"print(1)\xff", script=[reads])
    assert ended.code == 0
    assert ended.call.request.program == PythonSource(b"print(1)\xff", ("-x",))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "there is no program"),
        (("--",), "there is no program"),
        (("here.PY", "a"), "put -- in front of it: stockade run -- here.PY a"),
        (("-c",), "'-c' requires an argument"),
        (("--what", "x.py"), "No such option"),
        (("-c", "1", "x" * 131_072), "arguments[0]: exceeds 131072 bytes"),
    ],
)
def test_a_program_that_is_none(stockade: Stockade, words: tuple[str, ...], sentence: str) -> None:
    Path("here.PY").touch()
    ended = stockade("run", *words)
    assert ended.code == 64
    assert sentence in ended.said
    assert words == ("-c",) or "`stockade run --help` says more" in ended.said
    assert ended.calls == []


def test_a_missing_script_and_a_folder_have_their_own_sentences(stockade: Stockade) -> None:
    Path("folder.py").mkdir()
    Path("secret.py").touch(mode=0)
    missing, folder = stockade("run", "missing.py"), stockade("run", "folder.py")
    assert (missing.code, folder.code) == (66, 66)
    assert missing.said == "stockade: 'missing.py': there is no such file\n"
    assert folder.said == "stockade: 'folder.py' is a folder; a file is needed here\n"
    assert stockade("run", "a\0.py").code == 66
    # Whatever the name ends with; a bare word may have been meant for a program of the image.
    Path("folder").mkdir()
    for name in ("folder", "folder/", "/tmp", ".."):
        ended = stockade("run", name)
        assert (ended.code, ended.calls) == (66, [])
        assert ended.said == f"stockade: {name!r} is a folder; a file is needed here\n"
    for words in (("nothere",), ("node", "a.js"), ("",), ("prog.PY",), ("a\0",)):
        ended = stockade("run", *words)
        assert (ended.code, ended.calls) == (66, [])
        assert f"{words[0]!r}: there is no such file; for a program" in ended.said
        assert ended.said.isprintable() or ended.said.count("\n") == 1
    if os.geteuid() != 0:
        assert "Permission denied" in stockade("run", "secret.py").said


def test_a_script_is_not_read_without_bound(stockade: Stockade) -> None:
    Path("zero.py").symlink_to("/dev/zero")
    ended = stockade("run", "zero.py")
    assert ended.code == 64
    assert "larger than 16777216 bytes" in ended.said


# --- input and variables ---


def test_standard_input_is_copied_byte_for_byte(stockade: Stockade) -> None:
    data = bytes(range(256)) * 2000
    assert stockade("run", "-c", "", stdin=data, script=[cat]).out == data
    Path("in").write_bytes(b"\0other")
    assert stockade("run", "--input", "in", "-c", "", stdin=data, script=[cat]).out == b"\0other"
    assert stockade("run", "--input", "-", "-c", "", stdin=b"1", script=[cat]).out == b"1"


@pytest.mark.parametrize("option", ["--input", "--file"])
def test_input_files_that_cannot_be_read(stockade: Stockade, option: str) -> None:
    missing, folder = (stockade("run", option, name, "-c", "") for name in ("none", "/"))
    assert missing.code == 66
    assert "'none': there is no such file" in missing.said
    assert folder.code == 66
    assert "is a folder" in folder.said


def test_variables(stockade: Stockade, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "from here")
    request = stockade(
        "run", "--env", "A=1=2", "--env", "B=", "--env", "HERE", "-c", ""
    ).call.request
    assert request.environment == {"A": "1=2", "B": "", "HERE": "from here"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("UNSET_HERE", "--env 'UNSET_HERE': is not set here"),
        ("=x", "names no variable"),
        ("", "names no variable"),
        ("A=\0", "--env: 'A' is not a valid variable"),
    ],
)
def test_bad_variables(stockade: Stockade, text: str, sentence: str) -> None:
    ended = stockade("run", "--env", text, "-c", "")
    assert (ended.code, ended.calls) == (64, [])
    assert sentence in ended.said


# --- files ---


def test_files_go_below_the_workspace(stockade: Stockade) -> None:
    for name in ("a", "with:colon", "prog.py"):
        Path(name).write_text(name)
    request = stockade(
        "run", "--file", "a", "--file", "a:x/y", "--file", "./a:/workspace/z",
        "--file", "a:sub/", "--file", "with:colon:w", "prog.py",
    ).call.request  # fmt: skip
    assert request.files == {
        "a": b"a",
        "x/y": b"a",
        "z": b"a",
        "sub/a": b"a",
        "w": b"with:colon",
    }


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--file", "a:/etc/x"), "--file: '/etc/x' is not a plain path below /workspace"),
        (("--file", "a:../x"), "--file: '../x' is not a plain path"),
        (("--file", ":x"), "names no file"),
        (("--file", "a", "--file", "a"), "/workspace/a would be written twice"),
        (("--file", "a:prog.py"), "/workspace/prog.py would be written twice"),
        (("--memory", "16M", "--disk", "64k", "--file", "big"), "--disk raises it"),
        (("--file", "/dev/zero:z"), "--disk raises it"),
    ],
)
def test_bad_files(stockade: Stockade, arguments: tuple[str, ...], sentence: str) -> None:
    Path("a").touch()
    Path("prog.py").touch()
    Path("big").write_bytes(b"x" * 65_537)
    ended = stockade("run", *arguments, "prog.py")
    assert (ended.code, ended.calls) == (64, [])
    assert sentence in ended.said


def test_artefacts_come_out(stockade: Stockade) -> None:
    Path("folder").mkdir()
    script = [Scripted(artefacts={"a": b"1", "sub/b": b"2", "c": b"\0\xff"})]
    ended = stockade(
        "run", "--artefact", "/workspace/a", "--artefact", "sub/b:folder",
        "--artefact", "c:folder/d:e", "-c", "", script=script,
    )  # fmt: skip
    assert ended[:4] == (0, b"", b"", "")
    assert ended.call.request.artefacts == ("a", "sub/b", "c")
    assert Path("a").read_bytes() == b"1"
    assert Path("folder/b").read_bytes() == b"2"
    assert Path("folder/d:e").read_bytes() == b"\0\xff"
    assert names(".") == ["a", "folder"]
    assert names("folder") == ["b", "d:e"]


def test_nothing_is_replaced_without_force(stockade: Stockade) -> None:
    Path("a").write_text("old")
    refused = stockade("run", "--artefact", "a", "-c", "")
    assert (refused.code, refused.calls) == (64, [])
    assert "--artefact './a': exists already; --force replaces it" in refused.said
    script = [Scripted(artefacts={"a": b"new"})]
    assert stockade("run", "--force", "--artefact", "a", "-c", "", script=script).code == 0
    assert Path("a").read_text() == "new"


def test_a_file_that_appears_meanwhile_is_not_replaced(stockade: Stockade) -> None:
    async def meanwhile(call: Call) -> Scripted:
        Path("a").write_text("theirs")
        return Scripted(artefacts={"a": b"ours"})

    ended = stockade("run", "--artefact", "a", "-c", "", script=[meanwhile])
    assert ended.code == 74
    assert "'./a' cannot be written: File exists" in ended.said
    assert Path("a").read_text() == "theirs"
    assert names(".") == ["a"]


def test_a_link_is_never_followed(stockade: Stockade) -> None:
    async def meanwhile(call: Call) -> Scripted:
        Path("link").symlink_to("victim")
        return Scripted(artefacts={"link": b"evil"})

    Path("victim").write_text("safe")
    ended = stockade("run", "--force", "--artefact", "link", "-c", "", script=[meanwhile])
    assert ended.code == 74
    assert Path("victim").read_text() == "safe"
    before = stockade("run", "--force", "--artefact", "link", "-c", "")
    assert before.code == 64
    assert "is no regular file" in before.said
    device = stockade("run", "--force", "--artefact", "a:/dev/null", "-c", "")
    assert device.code == 64


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--artefact", ""), "names no file"),
        (("--artefact", ":x"), "names no file"),
        (("--artefact", "sub/"), "names no file"),
        (("--artefact", "../x"), "--artefact: '../x' is not a plain path"),
        (("--artefact", "/etc/passwd"), "--artefact: '/etc/passwd' is not a plain path"),
        (("--artefact", "x:no/such/y"), "there is no folder 'no/such'"),
        (("--artefact", "x:no/"), "there is no folder 'no/'"),
        (("--artefact", "x", "--artefact", "x:y"), "'x' is asked for twice"),
        (("--artefact", "x", "--artefact", "y:x"), "would be written twice"),
        (("--artefact", "x", "--result", "./x"), "would be written twice"),
        (("--result", "no/x"), "there is no folder 'no'"),
        (("--result", "-", "--json"), "has the result already"),
    ],
)
def test_bad_targets(stockade: Stockade, arguments: tuple[str, ...], sentence: str) -> None:
    ended = stockade("run", *arguments, "-c", "")
    assert (ended.code, ended.calls) == (64, [])
    assert sentence in ended.said


def test_an_artefact_that_is_not_there(stockade: Stockade) -> None:
    arguments = ("run", "--artefact", "a", "--artefact", "b", "-c", "")
    ended = stockade(*arguments, script=[Scripted(artefacts={"b": b"2"})])
    assert ended.code == 66
    assert ended.said == "stockade: artefact 'a' is not there: no such file\n"
    assert Path("b").read_bytes() == b"2"
    Path("b").unlink()
    assert stockade(*arguments, script=[Scripted(exit_code=5)]).code == 5


def test_the_result_goes_to_a_file_or_behind_the_output(stockade: Stockade) -> None:
    script = [Scripted(stdout=b"out\n", result=b"\0result")]
    assert stockade("run", "--result", "r", "-c", "", script=script).out == b"out\n"
    assert Path("r").read_bytes() == b"\0result"
    assert stockade("run", "--result", "-", "-c", "", script=script).out == b"out\n\0result"
    ended = stockade("run", "--result", "none", "-c", "")
    assert ended.code == 66
    assert ended.said == "stockade: the program wrote no result on descriptor 3\n"
    assert not Path("none").exists()


# --- limits and the sandbox ---


def test_every_limit_has_an_option(stockade: Stockade) -> None:
    sandbox = stockade(
        "run", "--timeout", "2m", "--cpu", "500ms", "--cpus", "1.5", "--memory", "1G",
        "--processes", "7", "--open-files", "64", "--disk", "64M", "--inodes", "99",
        "--output-limit", "0", "--result-limit", "2k", "--artefact-limit", "3k",
        "--record-limit", "4k", "--tier", "namespace", "-c", "",
    ).call.sandbox  # fmt: skip
    assert sandbox.limits == Limits(
        120, 0.5, 1.5, 1 << 30, 7, 64, 64 << 20, 99, 0, 2048, 3072, 4096
    )
    assert sandbox.tier is Tier.NAMESPACE
    assert stockade("run", "-c", "").call.sandbox == SandboxRequest()


@pytest.mark.parametrize("level", TrustLevel)
def test_a_trust_level_is_asked_for(stockade: Stockade, level: TrustLevel) -> None:
    call = stockade("run", "--trust", level, "-c", "").call
    assert (call.sandbox.trust, call.sandbox.tier) == (level, None)


def test_only_the_tiers_that_may_serve_are_opened(stockade: Stockade) -> None:
    """A call does not wait for a tier that cannot be chosen."""
    assert set(stockade("run", "-c", "").opened) == {*STRENGTH} - {Tier.VM}
    assert stockade("run", "-e", "1").opened == (Tier.EXPRESSION,)
    assert stockade("run", "--trust", "regulated", "-c", "").opened == (Tier.VM,)
    assert stockade("run", "--tier", "namespace", "-c", "").opened == (Tier.NAMESPACE,)
    assert Tier.NAMESPACE not in stockade("run", "--trust", "hostile", "-c", "").opened


def test_a_tier_that_is_too_weak_for_the_level_is_a_usage_error(stockade: Stockade) -> None:
    ended = stockade("run", "--trust", "hostile", "--tier", "namespace", "-c", "")
    assert (ended.code, ended.calls) == (64, [])
    assert ended.said.startswith(
        "stockade: --tier: namespace is too weak for trust level hostile, whose weakest tier is"
    )


def test_no_tier_that_is_strong_enough_is_unavailable(stockade: Stockade) -> None:
    """And no weaker one is taken."""
    ended = stockade("run", "--trust", "hostile", "-c", "", tiers={Tier.NAMESPACE})
    assert (ended.code, ended.calls) == (69, [])
    assert "unavailable: no tier that may run hostile code can be started here: microvm (" in (
        ended.said
    )
    assert "`stockade doctor`" in ended.said


def test_little_memory_alone_is_no_contradiction(stockade: Stockade) -> None:
    limits = stockade("run", "--memory", "64M", "-c", "").call.sandbox.limits
    assert (limits.memory_bytes, limits.disk_bytes) == (64 << 20, 64 << 20)
    ended = stockade("run", "--disk", "1G", "-c", "")
    assert ended.code == 64
    assert "--disk 1G exceeds --memory (512M)" in ended.said


@pytest.mark.parametrize(
    ("option", "value", "rule"),
    [
        ("--timeout", "-1s", "must not be negative"),
        ("--timeout", "nan", "a duration is a number and a unit"),
        ("--timeout", "25h", "it must be 10 ms to 86400 s"),
        ("--timeout", "0", "must be more than 0"),
        ("--cpu", "1ms", "it must be 10 ms to"),
        ("--cpus", "0", "must be more than 0"),
        ("--cpus", "two", "not a number"),
        ("--memory", "12Q", "'Q' is no unit"),
        ("--memory", "5k", "it must be 16M to 1T"),
        ("--processes", "1.5", "not a whole number"),
        ("--processes", "-1", "must not be negative"),
        ("--cpus", "-1", "must not be negative"),
        ("--memory", "99999999999999999999T", "a number of more than 18 digits"),
        ("--processes", "99999999999999999999", "a number of more than 18 digits"),
        ("--cpus", "0.99999999999999999999", "a number of more than 18 digits"),
        ("--processes", "0", "must be more than 0"),
        ("--open-files", "3", "it must be 16 to 1048576"),
        ("--disk", "1", "it must be 64k to 1T"),
        ("--inodes", "many", "not a whole number"),
        ("--output-limit", "-1", "must not be negative"),
        ("--result-limit", "2G", "it must be 0 to 1G"),
        ("--artefact-limit", "1e9", "is no unit"),
        ("--record-limit", "1G", "it must be 0 to 256M"),
        ("--tier", "microscope", "is none of: expression, wasm, namespace, gvisor"),
        ("--trust", "me", "is none of: reviewed, untested, hostile"),
    ],
)
def test_a_bad_value_names_the_option_the_value_and_the_rule(
    stockade: Stockade, option: str, value: str, rule: str
) -> None:
    ended = stockade("run", option, value, "-c", "")
    assert (ended.code, ended.calls) == (64, [])
    first = ended.said.splitlines()[0]
    assert f"'{option}': {value!r}" in first
    assert rule in first


def test_a_terminal_needs_one(stockade: Stockade) -> None:
    ended = stockade("run", "--tty", "-c", "")
    assert ended.code == 64
    assert "must both be a terminal" in ended.said
    assert stockade("run", "--no-tty", "-c", "").call.request.terminal is None


def test_an_expression_is_evaluated_and_its_value_shown(stockade: Stockade) -> None:
    ended = stockade("run", "-e", "input.a", stdin=b"{}", script=[Scripted(result=b"41")])
    assert ended.call.request.program == ExpressionSource("input.a")
    assert (ended.code, ended.out) == (0, b"41\n")


@pytest.mark.parametrize("others", [("a.py",), ("-c", "1"), ("--fresh",)])
def test_an_expression_is_a_program_of_its_own(stockade: Stockade, others: tuple[str, ...]) -> None:
    ended = stockade("run", "-e", "1", *others)
    assert ended.code == 64
    assert "program of its own" in ended.said

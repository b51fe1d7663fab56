"""How a command line is split between gradscope and the program that it runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from typer.main import get_command

from gradscope.cli import UsageError, app
from gradscope.commands import run as commands
from gradscope.launch.interpreter import Target
from gradscope.render.pictures import Options
from gradscope.rules.settings import DEFAULTS, FailOn, Format, Settings


def parse(*args: str) -> partial[int]:
    job = get_command(app).main(list(args), prog_name="gradscope", standalone_mode=False)
    assert isinstance(job, partial)
    return job


def target(*args: str) -> Target:
    job = parse("run", *args)
    assert job.func is commands.run
    return list(job.args[0])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["a.py"], ["a.py"]),
        (["a.py", "--format", "json"], ["a.py", "--format", "json"]),
        (["a.py", "-m", "b", "--help"], ["a.py", "-m", "b", "--help"]),
        (["a.py", "--", "x", "--"], ["a.py", "--", "x", "--"]),
        (["--", "-odd.py", "--guard"], ["-odd.py", "--guard"]),
        (["-m", "a.b"], ["-m", "a.b"]),
        (
            ["-m", "a", "--lr", "0.1", "-c", "-m", "--"],
            ["-m", "a", "--lr", "0.1", "-c", "-m", "--"],
        ),
        (["-ma.b", "-x"], ["-m", "a.b", "-x"]),
        (["--guard", "-m", "a", "--guard"], ["-m", "a", "--guard"]),
        (["--save", "-m", "a.py", "-m"], ["a.py", "-m"]),
        (["--save=-m", "a.py"], ["a.py"]),
        (["-c", "print(1)", "-c"], ["-c", "print(1)", "-c"]),
        (["-c", "-1", "--help"], ["-c", "-1", "--help"]),
        (["-cpass", "-h"], ["-c", "pass", "-h"]),
        (["-c", ""], ["-c", ""]),
    ],
)
def test_what_belongs_to_the_program(line: list[str], expected: Target) -> None:
    assert target(*line) == expected


@pytest.fixture(autouse=True)
def _as_users_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADSCOPE_NO_REHEARSAL", raising=False)


def test_the_options_of_run() -> None:
    assert parse("run", "a.py").args[1] == DEFAULTS
    files = ["--format", "sarif", "--output", "o", "--save", "s", "--html", "h", "--draw", "d.svg"]
    flags = ["--stop-after", "3", "--guard", "--no-hooks", "--no-rehearsal"]
    flags += ["--fail-on", "warning"]
    o, s, h, d = map(Path, ("o", "s", "h", "d.svg"))
    expected = Settings(
        fail_on=FailOn.WARNING,
        format=Format.SARIF,
        output=o,
        save=s,
        html=h,
        draw=d,
        stop_after=3,
        guard=True,
        hooks=False,
        rehearse=False,
    )
    assert parse("run", *files, *flags, "a.py").args[1] == expected


@pytest.mark.parametrize(
    ("ci", "words", "expected"),
    [
        ("", [], Format.TEXT),
        ("true", [], Format.BRIEF),
        ("True", [], Format.BRIEF),
        ("no", [], Format.TEXT),
        ("", ["-q"], Format.BRIEF),
        ("true", ["--format", "text"], Format.TEXT),
        ("", ["--quiet", "--format", "json"], Format.JSON),
    ],
)
def test_where_nobody_reads_a_run_is_brief(
    ci: str, words: list[str], expected: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", ci)
    assert parse("run", *words, "a.py").args[1].format is expected


def test_the_other_commands() -> None:
    a, b, svg = Path("a"), Path("b"), Path("b.svg")
    both = parse("report", "a", "b", "--format", "json").args
    assert both == ([a, b], Settings(format=Format.JSON), False, False)
    page = parse("report", "a", "--html", "b").args
    assert page == ([a], Settings(html=b), False, False)
    assert parse("report", "a", "--memory").args[-2:] == (True, False)
    assert parse("report", "a", "--trains").args[-2:] == (False, True)
    assert parse("report", "a", "--verbose").args[1] == Settings(verbose=True)
    assert parse("draw", "a", "-o", "b.svg").args == (a, svg, None, Options(), DEFAULTS)
    options = ["--call", "2", "--focus", "x", "--depth", "3", "--no-fold", "--sites"]
    drawn = (a, svg, 2, Options("x", 3, fold=False, sites=True), DEFAULTS)
    assert parse("draw", "a", "-o", "b.svg", *options).args == drawn
    assert parse("fix", "a").args == (a, (), DEFAULTS)
    options = ["--finding", "2", "--verify", "--write", "--stop-after", "5", "--timeout", "9.5"]
    asked = Settings(finding="2", verify=True, write=True, stop_after=5, timeout=9.5)
    assert parse("fix", "a", *options).args == (a, (), asked)
    more = parse("fix", "--no-rehearsal", "--yes", "a.py", "b").args
    assert more == (Path("a.py"), ("b",), Settings(rehearse=False, sandboxed=False))
    assert parse("explain", "GS101").args == ("GS101",)


@pytest.mark.parametrize(
    "line",
    [
        ["run"],
        ["run", "-m"],
        ["run", "-c"],
        ["run", "--nonsense", "a.py"],
        ["run", "--stop-after", "0", "a.py"],
        ["run", "--stop-after", "many", "a.py"],
        ["run", "--format", "junit", "a.py"],
        ["run", "--fail-on", "sometimes", "a.py"],
        ["report"],
        ["draw"],
        ["draw", "a"],
        ["draw", "a", "-o", "b.svg", "--call", "0"],
        ["fix"],
        ["fix", "a", "--stop-after", "0"],
        ["fix", "a", "--timeout", "0"],
        ["explain"],
        ["a.py"],
    ],
)
def test_what_is_used_wrongly(line: list[str]) -> None:
    with pytest.raises(UsageError):
        get_command(app).main(line, prog_name="gradscope", standalone_mode=False)


def test_each_option_of_a_run_is_told_from_one_of_the_programs() -> None:
    command = get_command(app).commands["run"]  # type: ignore[attr-defined]
    options = {option for each in command.params for option in each.opts}
    assert {*commands._OPTIONS.split()} == {each for each in options if each.startswith("--")}

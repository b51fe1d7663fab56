"""The command line as a user meets it: reports, recordings, exit statuses, and what it says when used wrongly."""

from __future__ import annotations

import json
import signal
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.command import CAUGHT, gradscope, ran, ran_well, refused
from tests.zygote import python

TWICE = """
import sys
import torch

weight = torch.ones(3, requires_grad=True)
shared = (weight * weight).exp()
shared.sum().backward()
print("first")
shared.mean().backward()
print("never printed")
"""

HEALTHY = """
import atexit
import sys
import torch

atexit.register(print, "exit handler")
weight = torch.ones(3, requires_grad=True)
for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 5):
    try:
        (weight * weight).sum().backward()
    except Exception:
        print("swallowed")
    print("step", step)
"""

FORKS = """
import os
import torch

weight = torch.ones(3, requires_grad=True)
loss = (weight * weight).sum()
loss.backward()
child = os.fork()
try:
    loss.backward()
except RuntimeError:
    os.write(1, b"child\\n" if child == 0 else b"parent\\n")  # at once, in one piece
if child:
    os.waitpid(child, 0)
"""

INTERRUPTED = """
import os
import signal
import torch

weight = torch.ones(3, requires_grad=True)
for step in range(1000):
    (weight * weight).sum().backward()
    if step == 9:
        os.kill(os.getpid(), signal.SIGINT)
"""

LATE_THREAD = """
import threading
import time
import torch

def train():
    time.sleep(0.3)
    weight = torch.ones(3, requires_grad=True)
    loss = (weight * weight).sum()
    loss.backward()
    try:
        loss.backward()
    except RuntimeError:
        print("caught")

threading.Thread(target=train).start()
"""

SETS_THREADS = """
import os
import sys

assert "torch" not in sys.modules
os.environ["OMP_NUM_THREADS"] = "1"
import torch

print(torch.get_num_threads(), type(torch.__spec__.loader).__name__, "exec_module" in vars(torch.__spec__.loader))
print([type(finder).__name__ for finder in sys.meta_path])
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "train.py"


def test_a_finding_is_told_and_the_programs_own_status_and_traceback_stay(script: Path) -> None:
    script.write_text(TWICE)
    plain = ran(python(), script)
    done = gradscope("run", script)
    assert (done.stdout, done.returncode) == (plain.stdout, plain.returncode) == ("first\n", 1)
    assert plain.stderr.splitlines()[0] in done.stderr
    assert done.stderr.count("error[GS101]") == 1  # the report of a crash repeats nothing
    assert f"{script}:9" in done.stderr
    assert done.stderr.index("error[GS101]") < done.stderr.index("Traceback")
    quiet = gradscope("run", "--output", script.with_suffix(".txt"), script)
    assert quiet.stderr == plain.stderr
    assert script.with_suffix(".txt").read_text().count("error[GS101]") == 1


@pytest.mark.full(but=4)
@pytest.mark.parametrize(
    ("options", "program", "status"),
    [
        ([], CAUGHT, 1),
        (["--fail-on", "warning"], CAUGHT, 1),
        (["--fail-on", "advice"], CAUGHT, 1),
        (["--fail-on", "never"], CAUGHT, 0),
        (["--no-hooks"], CAUGHT, 1),
        (["--fail-on", "advice"], HEALTHY, 0),
        ([], CAUGHT + "raise SystemExit(5)\n", 5),
        ([], CAUGHT + "raise SystemExit(0)\n", 1),
        (["--fail-on", "never"], CAUGHT + "raise ValueError\n", 1),
        ([], LATE_THREAD, 1),
    ],
)
def test_exit_statuses(script: Path, options: list[str], program: str, status: int) -> None:
    script.write_text(program)
    assert gradscope("run", *options, script).returncode == status


@pytest.mark.parametrize("kind", ["json", "sarif", "github"])
def test_the_machine_formats_stand_alone(script: Path, kind: str) -> None:
    script.write_text(CAUGHT)
    done = gradscope("run", "--format", kind, script)
    assert done.stdout == "RuntimeError\n"
    assert "GS101" in done.stderr
    if kind == "github":
        assert all(line.startswith(("::error ", "::warning ")) for line in done.stderr.splitlines())
    else:
        json.loads(done.stderr)
    written = gradscope("run", "--format", kind, "--output", script.with_suffix(".out"), script)
    assert (written.stderr, written.returncode) == ("", 1)
    assert "GS101" in script.with_suffix(".out").read_text()


def test_json_tells_what_was_run_and_how_it_ended(script: Path) -> None:
    script.write_text(TWICE)
    found = json.loads(
        gradscope("run", "--format", "json", "--output", "/dev/stdout", script, "a", "--b").stdout[
            6:
        ]
    )
    assert found["script"]["path"] == str(script)
    assert found["script"]["argv"] == ["a", "--b"]
    assert found["script"]["exit_status"] == 1
    assert found["script"]["exception"].startswith(
        "RuntimeError: Trying to backward through the graph a second time"
    )
    assert found["summary"]["backward_calls"] == 2


def test_a_saved_recording_gives_the_live_report(script: Path, tmp_path: Path) -> None:
    script.write_text(CAUGHT)
    saved = tmp_path / "run.gscope"
    live = gradscope("run", "-v", "--save", saved, script, executable=sys.executable)
    later = gradscope("report", "--verbose", saved)
    assert later.returncode == 0
    assert later.stderr == ""
    blocks, totals = later.stdout.rstrip().split("\nbackward calls\n")
    assert "error[GS101]" in blocks
    assert live.stderr.startswith(blocks)  # each finding in full, once: when it was made
    assert live.stderr.rstrip().endswith(totals)
    again = live.stderr.removeprefix(blocks).strip().splitlines()
    assert again[0] == "findings"
    assert [line.split("]")[0] for line in again[1:3]] == ["  warning[GS102", "  error[GS101"]
    live_json = gradscope("run", "--save", saved, "--format", "json", script).stderr
    assert gradscope("report", "--format", "json", saved).stdout == live_json
    two = gradscope("report", saved, saved, "--output", tmp_path / "two.txt")
    assert two.stdout == ""
    assert (tmp_path / "two.txt").read_text().count("error[GS101]") == 2


def test_the_recordings_of_ranks_are_found_by_the_name_that_was_given(
    script: Path, tmp_path: Path
) -> None:
    """`--save ddp.gscope` under torchrun leaves ddp-0.gscope, ddp-1.gscope, and so on."""
    script.write_text(CAUGHT)
    for rank in ("0", "1", "10"):
        environment = {"RANK": rank, "WORLD_SIZE": "11"}
        gradscope("run", "--save", "ddp.gscope", script, cwd=tmp_path, **environment)
    (tmp_path / "ddp-old.gscope").write_text("")
    for arguments, says in (
        (["report", "ddp.gscope"], "gradscope report --verbose ddp.gscope\n"),
        (["report", "ddp.gscope"], "in 6 backward calls of 3 processes"),
        (["draw", "ddp.gscope", "-o", "drawn.svg"], "picture: drawn.svg"),
        (["fix", "ddp.gscope"], "GS101"),
    ):
        done = gradscope(*arguments, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert says in done.stdout
    (tmp_path / "ddp-1.gscope").replace(tmp_path / "ddp-2.gscope")
    assert gradscope("run", "--save", tmp_path / "ddp-1.gscope", script).returncode == 1
    done = gradscope("draw", "ddp.gscope", "-o", "drawn.svg", cwd=tmp_path)
    assert done.returncode == 2
    assert "are of several runs: name one" in done.stderr


def test_an_interrupted_run_leaves_a_report_and_a_recording(script: Path, tmp_path: Path) -> None:
    script.write_text(INTERRUPTED)
    done = gradscope("run", "--save", tmp_path / "run.gscope", script)
    assert done.returncode == -signal.SIGINT
    assert (
        done.stderr.count("KeyboardInterrupt\n") == 2
    )  # the program's own traceback, and the report
    assert "10 backward calls" in done.stderr
    assert "10 backward calls" in gradscope("report", tmp_path / "run.gscope").stdout


def test_stop_after(script: Path) -> None:
    script.write_text(HEALTHY)
    done = gradscope("run", "--stop-after", "3", script, "100")
    assert done.stdout == "step 0\nstep 1\nexit handler\n"
    assert done.returncode == 0
    assert "3 backward calls" in done.stderr
    assert "StopRun" not in done.stderr
    says = "the program was stopped after 3 backward calls, as --stop-after asked"
    assert f"note: {says}\n" in done.stderr
    for calls, notes in (("100", [says]), ("2", [])):
        form = gradscope("run", "--stop-after", "3", "--format", "json", script, calls)
        assert json.loads(form.stderr)["summary"]["notes"] == notes


def test_guard_raises_in_the_engines_place(script: Path) -> None:
    script.write_text(CAUGHT)
    assert gradscope("run", "--guard", script).stdout == "FreedGraphError\n"


def test_a_forked_child_says_nothing_and_is_in_the_report(script: Path) -> None:
    script.write_text(FORKS)
    done = gradscope("run", "--output", script.with_suffix(".txt"), script)
    assert sorted(done.stdout.split()) == ["child", "parent"]
    live, end = script.with_suffix(".txt").read_text().split("note: met in process")
    assert live.count("error[GS101]") == 2, "the parent's own, at once; then the child's"
    assert end.count("error[GS101]") == 1, "the parent's, in the list"
    assert "2 errors, 1 warning in 3 backward calls of 2 processes" in end
    assert done.stderr == ""


def test_torch_is_not_imported_before_the_program_does_and_no_trace_is_left(script: Path) -> None:
    script.write_text(SETS_THREADS)
    plain = ran_well(sys.executable, script)
    assert gradscope("run", script, executable=sys.executable).stdout == plain.stdout


def test_a_program_without_torch(script: Path) -> None:
    script.write_text("print('hello')")
    done = gradscope("run", "--save", "unwritten.gscope", script, cwd=script.parent)
    assert (done.stdout, done.returncode) == ("hello\n", 0)
    assert "never imported torch" in done.stderr
    assert not (script.parent / "unwritten.gscope").exists()
    assert json.loads(gradscope("run", "--format", "json", script).stderr)["findings"] == []


@pytest.mark.parametrize(
    ("program", "status"), [("x = (", 1), ("import no_such_module", 1), ("raise SystemExit(3)", 3)]
)
def test_of_a_program_that_fails_before_torch_only_python_tells(
    script: Path, program: str, status: int
) -> None:
    script.write_text(program)
    plain = ran(sys.executable, script)
    done = gradscope("run", script)
    assert (done.stderr, done.returncode) == (plain.stderr, status)
    saving = gradscope("run", "--save", "unwritten.gscope", script, cwd=script.parent)
    says = "gradscope: the program ended before it imported torch, and unwritten.gscope was not written"
    assert saving.stderr == f"{plain.stderr}{says}\n"


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (["-m", "missing.module"], "missing"),
        (["-m", "email"], "email.__main__"),
        (["empty"], "__main__"),
    ],
)
def test_what_is_not_found_is_told_in_the_words_of_python(
    tmp_path: Path, program: list[str], says: str
) -> None:
    (tmp_path / "empty").mkdir()
    plain = ran(sys.executable, *program, cwd=tmp_path)
    done = gradscope("run", *program, cwd=tmp_path)
    assert done.returncode == plain.returncode == 1
    assert done.stderr.startswith(plain.stderr)
    assert says in plain.stderr


@pytest.mark.full(but=8)
@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["run", "missing.py"], "missing.py"),
        (["run", "--output", "missing/out.txt", "ok.py"], "missing/out.txt"),
        (["run", "--output", "empty", "ok.py"], "empty"),
        (["run", "--save", "missing/run.gscope", "ok.py"], "missing/run.gscope"),
        (["run", "--save", "empty", "ok.py"], "empty"),
        (["run", "--save", "ok.py", "ok.py"], "not a gradscope recording"),
        (["run", "--nonsense", "ok.py"], "--nonsense"),
        (["run"], "PROGRAM"),
        (["report", "missing.gscope"], "missing.gscope"),
        (["report", "ok.py"], "ok.py"),
        (["report", "empty"], "empty"),
        (["fix", "missing.gscope"], "missing.gscope: no such file"),
        (["fix", "text.gscope"], "text.gscope: not a gradscope recording"),
        (["explain", "GS999"], "GS101"),
        (["nonsense"], "nonsense"),
        (["ok.py", "a b"], "use `gradscope run ok.py 'a b'`"),
        (["text.gscope"], "use `gradscope report text.gscope`"),
        (["run", "text.gscope"], "text.gscope is a recording: gradscope report text.gscope"),
        (["run", "sh", "-c", "true"], "sh is not a Python program"),
        (["run", "cells.ipynb"], "%load_ext gradscope"),
    ],
)
def test_used_wrongly(tmp_path: Path, args: Sequence[str], says: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "ok.py").write_text("print('ran')")
    (tmp_path / "text.gscope").write_text("text")
    refused(gradscope(*args, cwd=tmp_path), says)


@pytest.mark.full
@pytest.mark.parametrize("line", [["python", "-Ou"], ["--", sys.executable, "-O"]])
def test_python_is_not_needed_and_its_options_hold(script: Path, line: list[str]) -> None:
    script.write_text("import sys\nprint(sys.argv, sys.flags.optimize, sys.path[0])\n" + CAUGHT)
    done = gradscope("run", "--fail-on", "never", *line, script, "--a", executable=sys.executable)
    program = f"{[str(script), '--a']} 1 {script.parent}\nRuntimeError\n"
    assert (done.stdout, done.returncode) == (program, 0)
    assert "GS101" in done.stderr


def test_a_watch_in_a_script_names_what_mends_it(script: Path) -> None:
    watched = textwrap.indent(CAUGHT, "    ")
    text = f"import gradscope\nwith gradscope.watch() as scope:\n{watched}\nprint(scope)\n"
    script.write_text(text)
    done = ran_well(python(), script.name, "--epochs", "1", cwd=script.parent)
    assert "\nnext: gradscope fix train.py -- --epochs 1\n" in done.stdout


PARSES = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--lr")
parser.parse_args()
"""


def test_an_option_of_ours_behind_the_script_is_told(script: Path) -> None:
    script.write_text(PARSES)
    for words in (["--save", "x.gscope"], ["--html=out.html"]):
        done = gradscope("run", script.name, *words, cwd=script.parent)
        assert done.returncode == 2
        assert done.stderr.endswith(
            f"gradscope: train.py was given {words[0]}: gradscope's own options go before train.py\n"
        )
    others = gradscope("run", script.name, "--nonsense", cwd=script.parent)
    assert (others.returncode, "own options" in others.stderr) == (2, False)


def test_help() -> None:
    for args in (["--help"], ["run", "-h"], ["report", "--help"], []):
        done = gradscope(*args)
        assert (done.returncode, done.stderr) == (0, "")
        assert "Usage: gradscope" in done.stdout
        assert all(len(line) <= 80 for line in done.stdout.splitlines())
        assert "..." not in done.stdout.partition("Commands:")[2]


def test_explain_and_rules() -> None:
    assert (
        gradscope("explain", "gs101").stdout
        == gradscope("explain", "backward-through-freed-graph").stdout
    )
    listed = gradscope("rules").stdout
    for code in ("GS101", "GS201"):
        assert code in listed
        assert code in gradscope("explain", code).stdout


@pytest.mark.parametrize(
    "args", [["explain", "GS101"], ["rules"], ["report", "--help"], ["--version"], ["run", "-h"]]
)
def test_what_needs_no_torch_does_not_import_it(args: list[str]) -> None:
    code = f"""
        import sys
        sys.argv = ["gradscope", *{args!r}]
        from gradscope.cli import main
        main()
        print("torch" in sys.modules, file=sys.stderr)
    """
    done = ran_well(sys.executable, "-c", textwrap.dedent(code))
    assert done.stderr == "False\n"


@pytest.mark.parametrize("program", ["script.py", "absent.py", "--", "-m"])
def test_a_run_without_options_imports_no_parser_and_is_the_same(
    program: str, tmp_path: Path
) -> None:
    text = """
        import sys, torch
        print(sys.argv, __file__, sys.path[0])
        torch.ones(2, requires_grad=True).exp().sum().backward()
        print(not {"typer", "pydantic", "click"} & sys.modules.keys(), file=sys.stderr)
        sys.exit(3)
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(text), encoding="utf-8")
    words = ["-m", "gradscope", "run", program, "script", "--help", "-m"]
    options = ["GRADSCOPE_NO_REHEARSAL", "GRADSCOPE_BUDGET"]
    unset = [word for option in options for word in ("-u", option)]
    without = ran("env", *unset, sys.executable, *words, cwd=tmp_path)
    parsed = ran(sys.executable, *words, cwd=tmp_path, GRADSCOPE_NO_REHEARSAL="")
    assert (without.returncode, without.stdout) == (parsed.returncode, parsed.stdout)
    is_parsed = program != "script.py"
    assert without.stderr.replace("True\n", "False\n" if not is_parsed else "") == parsed.stderr
    assert ("True" in without.stderr) != is_parsed


def test_nobody_reads_the_rules_to_their_end() -> None:
    command = f"{sys.executable} -m gradscope explain GS101 | head -c 1 > /dev/null"
    done = ran("bash", "-c", command)
    assert "Traceback" not in done.stderr


def test_what_is_suppressed_is_neither_printed_nor_counted(script: Path) -> None:
    program = CAUGHT.replace(
        "    loss.backward()", "    loss.backward()  # gradscope: ignore[GS101]"
    )
    script.write_text(program, encoding="utf-8")
    done = gradscope("run", "--ignore", "GS102", script.name, cwd=script.parent)
    assert done.returncode == 0
    assert "GS10" not in done.stderr
    assert "no finding, 2 suppressed in 2 backward calls" in done.stderr


def test_a_baseline_of_the_findings_of_today(script: Path) -> None:
    script.write_text(CAUGHT, encoding="utf-8")
    written = gradscope("run", "--write-baseline", "b.json", script.name, cwd=script.parent)
    assert written.returncode == 0
    assert "baseline: b.json (2 findings)" in written.stderr
    script.write_text("import os\n" + CAUGHT, encoding="utf-8")
    options = ("--baseline", "b.json", "--fail-on", "advice")
    known = gradscope("run", *options, script.name, cwd=script.parent)
    assert known.returncode == 0
    assert "no finding, 2 suppressed" in known.stderr

"""``gradscope fix`` from end to end: what it shows applies, what it writes runs clean, and what fails is not written."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import termios
import textwrap
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from recorded import rewrite

from gradscope.model import Applicability, Edit
from gradscope.record.file import load
from gradscope.record.writer import RecordingWriter
from tests import known
from tests.command import ENVIRONMENT, ROOT, command, ran_well, refused
from tests.command import gradscope as run_gradscope
from tests.integration.test_branches import HEAD, NOT_TAKEN
from tests.integration.test_rehearsal_run import rehearsed

CASES = ROOT / "tests" / "cases"

pytestmark = pytest.mark.full

CARRIED = """\
import sys
import torch

torch.manual_seed(0)
cell = torch.nn.RNNCell(3, 5)
optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
h = torch.zeros(2, 5)
for step in range(int(sys.argv[1])):
    h = cell(torch.ones(2, 3), h)
    loss = h.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step)
"""
CUT = {"loss.backward()": "loss.backward()\n    h = h.detach()"}


def gradscope(
    *args: str | Path, cwd: Path, executable: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    environment["PYTHONDONTWRITEBYTECODE"] = ""
    return run_gradscope(*args, cwd=cwd, executable=executable, **environment)


def recorded(folder: Path, *program: str, cwd: Path | None = None) -> Path:
    """A recording of the program, made in ``cwd``, which gets a separate command."""
    file = folder / "run.gscope"
    done = gradscope("run", "--save", file, *program, cwd=cwd or folder)
    assert file.exists(), done.stderr
    return file


def with_edits(file: Path, source: Path, edited: dict[str, str], *codes: str) -> Path:
    """Put into a recording, as the fix of the findings of these codes or of all, the lines that
    stand there instead, each by its text: a rehearsal would find some, but takes seconds.
    """
    lines = source.read_text("utf-8").splitlines()
    edits = tuple(
        Edit(str(source), number, line.replace(line.strip(), edited[line.strip()]))
        for number, line in enumerate(lines, 1)
        if line.strip() in edited
    )
    assert len(edits) == len(edited)
    safe = Applicability.MACHINE_APPLICABLE
    recording = load(file)
    findings = tuple(
        replace(each, fix=replace(each.fix, edits=edits, applicability=safe), alternatives=())
        if each.fix is not None and (not codes or each.code in codes)
        else each
        for each in recording.findings
    )
    file.unlink()
    writer = RecordingWriter(file, recording.header)
    rewrite(writer, replace(recording, findings=findings))
    writer.finish(recording.outcome, recording.summary)
    writer.close()
    return file


def carried(folder: Path, steps: str, program: str = CARRIED) -> Path:
    """A recording of a program that carries a state, with the edit that lets go of its graph."""
    script = folder / "train.py"
    script.write_text(program, encoding="utf-8")
    return with_edits(recorded(folder, "train.py", steps), script, CUT)


def findings(folder: Path, *program: str) -> set[tuple[str, str]]:
    options = ("--format", "json", "--output", "found.json", "--fail-on", "never")
    done = gradscope("run", *options, *program, cwd=folder)
    assert done.returncode == 0, done.stderr
    report = json.loads((folder / "found.json").read_text())
    return {(found["code"], found["severity"]) for found in report["findings"]}


@pytest.mark.parametrize(
    ("begins", "says"),
    [
        ("", "as the only rank of a launcher"),
        (
            "if os.environ['WORLD_SIZE'] == '1': sys.exit()\n",
            "the program made no backward call as the only rank of a launcher",
        ),
    ],
)
def test_a_rank_is_tried_out_as_one(begins: str, says: str, tmp_path: Path) -> None:
    needs = "import os, sys, torch\nrank, port = os.environ['RANK'], os.environ['MASTER_PORT']\n"
    (tmp_path / "train.py").write_text(needs + begins + CARRIED)
    launched = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1"}
    gradscope("run", "--save", "run.gscope", "train.py", "3", cwd=tmp_path, **launched)
    (file,) = tmp_path.glob("*.gscope")
    with_edits(file, tmp_path / "train.py", CUT)
    done = gradscope("fix", "run.gscope", "--pick", "1", "--verify", cwd=tmp_path)
    assert says in " ".join(done.stdout.split())
    assert done.returncode == bool(begins), done.stdout


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    "case",
    [
        "002_rnn_state_in_module_attr",
        "022_backward_on_running_total",
        "../../examples/actor_critic_hazard",
        "../../examples/multi_task_hazard",
    ],
)
def test_what_is_written_runs_clean(case: str, tmp_path: Path) -> None:
    shutil.copy((CASES / f"{case}.py").resolve(), tmp_path / "train.py")
    file = recorded(tmp_path, "train.py")
    before = (tmp_path / "train.py").read_text()

    written = rehearsed("fix", file, "--write", cwd=tmp_path)
    assert written.returncode == 0, written.stdout + written.stderr
    assert written.stdout.endswith(f"the fix holds\nwritten: {tmp_path / 'train.py'}\n")
    assert "--- train.py\n+++ train.py\n@@" in written.stdout
    assert " effect: " not in written.stdout
    after = (tmp_path / "train.py").read_text()
    (tmp_path / "train.py").write_text(before)
    ran_well("patch", "-p0", cwd=tmp_path, given=written.stdout)
    assert (tmp_path / "train.py").read_text() == after != before
    left = findings(tmp_path, "--stop-after", "60", "train.py")
    assert {severity for _, severity in left} <= {"advice"}


@pytest.mark.full(but=1)
def test_verify_tells_hazard_end_loss_and_memory(tmp_path: Path) -> None:
    tried = gradscope("fix", carried(tmp_path, "30"), "--verify", cwd=tmp_path)
    assert tried.returncode == 0, tried.stdout + tried.stderr
    assert (tmp_path / "train.py").read_text() == CARRIED
    words = " ".join(tried.stdout.partition("tried out")[2].split())
    assert (
        "train.py 30 as it is, and with the fix, for at most 100 backward calls each,"
        " and for 600 seconds in all" in words
    )
    assert "failure gone new none" in words
    assert (
        "ends normally, after 30 backward calls"
        " (before, raised RuntimeError after 2 backward calls)" in words
    )
    loss = known(
        re.search(
            r"loss `loss` (\S+) → (\S+) \(mean of the first \d and last \d values; no verdict\)",
            words,
        )
    )
    assert float(loss[2]) < float(loss[1])
    # The program as it is fails at its second call: that is no measure for thirty.
    assert re.search(r"memory \S+ \w?i?B\b.* verdict holds", words)
    assert "step 1" not in map(str.strip, tried.stdout.splitlines())


def test_the_page_about_fixes_shows_what_is_printed(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    shutil.copy(ROOT / "examples" / "multi_task_hazard.py", tmp_path / "examples")
    gradscope("run", "--save", "run.gscope", "examples/multi_task_hazard.py", cwd=tmp_path)
    printed = rehearsed("fix", "run.gscope", "--verify", cwd=tmp_path).stdout
    printed = re.sub(r"\Asearched for .*\n", "", printed)  # a plain `run` does that itself
    page = (ROOT / "docs" / "fix.md").read_text(encoding="utf-8")
    shown = page.partition("$ gradscope fix run.gscope --verify\n")[2].partition("```")[0]
    # Wrapped lines and losses may differ from one build of torch to another.
    for mine, theirs in zip(_parts(printed), _parts(shown), strict=True):
        assert mine == theirs


def _parts(text: str) -> tuple[list[str], list[str]]:
    """The words before and after the table's begin; its cells wrap by themselves, so in order."""
    before, _, rest = re.sub(r"[\d.]+", "N", text).partition("seconds in all")
    return before.split(), sorted(rest.split())


def test_the_run_can_be_bounded(tmp_path: Path) -> None:
    file = carried(tmp_path, "1000000")
    tried = gradscope("fix", file, "--verify", "--stop-after", "7", cwd=tmp_path)
    assert tried.returncode == 0, tried.stdout + tried.stderr
    assert "stopped after 7 backward calls" in " ".join(tried.stdout.split())


def test_a_run_that_does_not_end_is_ended(tmp_path: Path) -> None:
    hangs = CARRIED.replace("for step", "import time\nfor step").replace(
        "    print", "    step == 2 and time.sleep(600)\n    print"
    )
    file = carried(tmp_path, "30", hangs)
    options = ("--verify", "--pick", "1", "--timeout", "12")
    tried = gradscope("fix", file, *options, cwd=tmp_path)
    assert tried.returncode == 0, tried.stdout + tried.stderr
    ended = known(
        re.search(
            r"stopped after (\d+) seconds and 3 backward calls", " ".join(tried.stdout.split())
        )
    )
    assert int(ended[1]) <= 12


def test_an_edit_in_an_imported_module_of_a_package_run_with_m(tmp_path: Path) -> None:
    package = tmp_path / "work" / "pack"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "data.txt").write_text("3")
    (package / "__main__.py").write_text(
        "import sys\nfrom pathlib import Path\nfrom .steps import train\n"
        "assert sys.argv[1:] == ['x y'], sys.argv\n"
        "train(int(Path(__file__).with_name('data.txt').read_text()), Path('here.txt').read_text())\n"
    )
    body = textwrap.indent(CARRIED.partition("torch.manual")[2].partition("\n")[2], "    ")
    (package / "steps.py").write_text(
        "import torch\n\ndef train(steps, _):\n" + body.replace("int(sys.argv[1])", "steps")
    )
    (tmp_path / "work" / "here.txt").touch()
    file = recorded(tmp_path, "-m", "pack", "x y", cwd=tmp_path / "work")
    cut = {"loss.backward()": "loss.backward()\n        h = h.detach()"}
    with_edits(file, package / "steps.py", cut)
    compiled = next((package / "__pycache__").glob("steps.*.pyc")).read_bytes()
    written = gradscope("fix", file, "--write", cwd=tmp_path)  # from another directory
    assert written.returncode == 0, written.stdout + written.stderr
    assert "--- work/pack/steps.py\n" in written.stdout
    assert "h = h.detach()" in (package / "steps.py").read_text()
    assert next((package / "__pycache__").glob("steps.*.pyc")).read_bytes() == compiled
    assert findings(tmp_path / "work", "-m", "pack", "x y") == set()


@pytest.mark.full(but=1)
def test_what_does_not_hold_is_not_written_and_its_traceback_is_of_the_changed_source(
    tmp_path: Path,
) -> None:
    ends = "import inspect\nprint(inspect.getsource(sys.modules['__main__']))\nraise ValueError('at the end')\n"
    tried = gradscope("fix", carried(tmp_path, "3", CARRIED + ends), "--write", cwd=tmp_path)
    assert tried.returncode == 1, tried.stdout + tried.stderr
    output = tried.stdout.partition("  output")[2]
    assert "\n        h = h.detach()\n" in output
    assert "\n        raise ValueError('at the end')\n" in output
    assert tried.stdout.endswith("not verified: with the fix the program fails in another way\n")
    assert (tmp_path / "train.py").read_text() == CARRIED + ends


def test_a_hazard_that_does_not_show_again_proves_nothing(tmp_path: Path) -> None:
    once = "import os\nif os.path.exists('ran'):\n    sys.exit()\nopen('ran', 'w').close()\n"
    file = carried(tmp_path, "3", CARRIED.replace("import sys\n", "import sys\n" + once))
    tried = gradscope("fix", file, "--verify", cwd=tmp_path)
    assert tried.returncode == 1
    assert "did not occur" in tried.stdout


MAY_FAIL = HEAD + NOT_TAKEN["norm"]
KEEPS = """keep = []
for i in range(12):
    loss = net(torch.randn(2, 4)).pow(2).sum()
    keep.append(loss)
    loss.backward()
"""


@pytest.mark.parametrize("more", ["", KEEPS])
def test_a_fix_for_what_never_came_is_not_written(more: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(MAY_FAIL + more)
    file = recorded(tmp_path, "train.py")
    first = {"loss = out.sum()": "loss = out.sum()  # retain_graph"}
    with_edits(file, script, first, "GS102")
    if more:
        with_edits(file, script, {"keep.append(loss)": "keep.append(loss.detach())"}, "GS302")
    asked = () if more else ("--finding", "GS102")  # advice is followed only if it is asked for
    written = gradscope("fix", file, "--write", *asked, cwd=tmp_path)
    assert written.returncode == (0 if more else 1), written.stdout
    assert "GS102: this did not happen in the run: nothing to mend" in _in_one_line(written.stdout)
    assert ("(recommended)" in written.stdout or "the fix holds" in written.stdout) == bool(more)
    now = script.read_text()
    assert "retain_graph" not in now
    assert (now == MAY_FAIL) == (not more)


def _in_one_line(text: str) -> str:
    return " ".join(text.split())


def test_code_given_with_c_is_told_in_words(tmp_path: Path) -> None:
    file = recorded(tmp_path, "-c", CARRIED, "3")
    shown = gradscope("fix", file, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "error[GS101]" in shown.stdout
    written = gradscope("fix", file, "--write", cwd=tmp_path)
    assert written.returncode == 1
    assert "nothing" in written.stdout


def test_nothing_to_fix(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CARRIED.replace("ones(2, 3), h)", "ones(2, 3), h.detach())"))
    file = recorded(tmp_path, "train.py", "3")
    for option in ([], ["--verify"], ["--write"]):
        done = gradscope("fix", file, *option, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, f"nothing to fix: no finding in {file}\n")


def test_what_is_suppressed_is_left_out_until_it_is_named(tmp_path: Path) -> None:
    file = carried(tmp_path, "3")
    every = gradscope("fix", file, cwd=tmp_path).stdout
    assert "h.detach()" in every
    codes = sorted(set(re.findall(r"GS\d\d\d", every)))
    text = f"[tool.gradscope]\nignore = {json.dumps(codes)}\n"
    (tmp_path / "pyproject.toml").write_text(text)
    shown = gradscope("fix", file, cwd=tmp_path).stdout
    assert shown.startswith(f"nothing to fix: no finding in {file}, ")
    assert "suppressed finding" in shown
    named = gradscope("fix", file, "--finding", codes[0], cwd=tmp_path).stdout
    assert "h.detach()" in named
    (tmp_path / "pyproject.toml").unlink()
    options = ["--ignore", ",".join(codes)]
    assert gradscope("fix", file, *options, cwd=tmp_path).stdout == shown


def test_a_terminal_gets_colours_and_a_pipe_none(tmp_path: Path) -> None:
    file = carried(tmp_path, "3")
    assert "\x1b" not in gradscope("fix", file, cwd=tmp_path).stdout
    assert b"\x1b[32m+    h = h.detach()" in in_terminal("fix", file, cwd=tmp_path)


def in_terminal(*args: str | Path, cwd: Path, columns: int = 80) -> bytes:
    """What a command writes to a terminal; one of 0 columns does not say how wide it is."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24 if columns else 0, columns))
    environment = ENVIRONMENT | {"TERM": "xterm-256color"}
    words = command(*args, executable=sys.executable)
    running = subprocess.Popen(words, cwd=cwd, env=environment, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # Linux: the other end is closed
        while part := os.read(ours, 1 << 16):
            shown += part
    os.close(ours)
    running.wait()
    return shown


@pytest.mark.parametrize("columns", [0, 80])
@pytest.mark.parametrize("option", ["--verify", "--no-rehearsal"])
def test_no_progress_is_left_on_a_terminal(option: str, columns: int, tmp_path: Path) -> None:
    pyte = pytest.importorskip("pyte")
    (tmp_path / "fails.py").write_text("import torch\n1 / 0\n")
    file = carried(tmp_path, "3") if option == "--verify" else Path("fails.py")
    written = in_terminal("fix", file, option, cwd=tmp_path, columns=columns).decode()
    screen = pyte.Screen(80, 200)
    pyte.Stream(screen).feed(written)
    lines = [line.rstrip() for line in screen.display]
    assert "Ctrl-C leaves it" in written
    assert not any("leaves it" in line for line in lines)
    assert lines.count("tried out") + lines.count("ZeroDivisionError: division by zero") == 1


@pytest.mark.parametrize("option", ["--write", "--format=json"])
@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("import torch\nx = (\n", "SyntaxError: '(' was never closed"),
        ("import torch, no_such\n", "ModuleNotFoundError: No module named 'no_such'"),
        ("import sys, torch\nsys.exit('no data')\n", "no data"),
    ],
)
def test_a_script_that_fails_has_not_nothing_to_fix(
    program: str, says: str, option: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(program)
    done = gradscope("fix", option, "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    *printed, last = done.stderr.splitlines()
    assert printed[-1] == says
    why = "exit status 1" if says == "no data" else says
    assert last == f"gradscope: train.py could not run to a finding: {why}"


def test_what_comes_next_has_the_scripts_arguments(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CARRIED.replace("argv[1]", "argv[2]"))
    shown = rehearsed("fix", "train.py", "--", "--steps", "3", cwd=tmp_path)
    next_one = "gradscope fix train.py --{} -- --steps 3\n"
    expected = f"next: {next_one.format('verify')}      {next_one.format('write')}"
    assert shown.stdout.endswith(expected)
    refused(
        gradscope("fix", "train.py", "--steps", "3", cwd=tmp_path),
        "; put -- before the script's own arguments",
    )


def test_the_json_of_a_script_names_the_version_of_torch(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CARRIED)
    options = ("--format", "json", "--no-rehearsal")
    done = gradscope("fix", *options, "train.py", "3", cwd=tmp_path)
    assert json.loads(done.stdout)["torch"] == version("torch")


def test_advice_says_how_it_is_asked_for(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(MAY_FAIL)
    edited = {"loss = out.sum()": "loss = out.sum()  # retain_graph"}
    file = with_edits(recorded(tmp_path, "train.py"), script, edited, "GS102").name
    asking = f"gradscope fix {file} --finding GS102"
    following = f"next: {asking} --verify\n      {asking} --write\n"
    shown = gradscope("fix", file, cwd=tmp_path)
    assert (shown.returncode, shown.stdout.endswith(f"\n\n{following}")) == (0, True)
    written = gradscope("fix", file, "--write", cwd=tmp_path)
    says = "nothing to try out: advice is followed only if it is named"
    assert (written.returncode, written.stdout.endswith(f"\n{says}\n{following}")) == (1, True)
    assert f"next: {asking} --write\n" in gradscope("report", file, cwd=tmp_path).stdout


def test_a_stream_that_cannot_hold_the_source_still_gets_a_diff(tmp_path: Path) -> None:
    file = carried(tmp_path, "3", CARRIED.replace("loss.b", "# \u20ac\n    loss.b"))
    done = gradscope("fix", file, cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "\\u20ac" in done.stdout

"""Pictures and pages from the command line: of real runs, of their recordings, and what is said when there is none."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from drawn import texts as texts_of

from tests.command import gradscope, ran_well, refused

TWO_LOSSES = """
import torch
from torch import nn

torch.manual_seed(0)
encoder, head_a, head_b = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 2)
z = encoder(torch.randn(3, 4)).tanh()
loss_a = head_a(z).pow(2).mean()
loss_b = head_b(z).exp().mean()
loss_a.backward()
loss_b.backward()
"""

SHARED_Y = """
import torch

torch.manual_seed(0)
a, t, x = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3), torch.randn(3, 3)
y = t @ a
for step in range(2):
    x_out = t @ (x + y)
    loss = x_out.pow(2).sum()
    loss.backward()
"""

HEALTHY = """
import torch

weight = torch.ones(3, requires_grad=True)
for step in range(4):
    loss = (weight * weight).exp().sum()
    loss.backward()
print("ran")
"""

NO_BACKWARD = "import torch\nprint('ran')\n"


def texts(svg: Path) -> list[str]:
    return texts_of(svg.read_bytes())


def recorded(folder: Path, program: str, *options: str) -> Path:
    script = folder / "train.py"
    script.write_text(program)
    done = gradscope("run", "--save", "run.gscope", *options, script, cwd=folder)
    assert (folder / "run.gscope").exists(), done.stderr
    return folder / "run.gscope"


@pytest.fixture(scope="module")
def two_losses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording, with a picture and a page beside it that the run has written."""
    folder = tmp_path_factory.mktemp("two_losses")
    return recorded(folder, TWO_LOSSES, "--draw", "live.svg", "--html", "live.html")


def test_the_finding_is_drawn_with_the_graph_that_freed_it(two_losses: Path) -> None:
    said = texts(two_losses.with_name("live.svg"))
    assert "Backward graph of loss_a (call 1), loss_b (call 2)" in said
    assert any(text.endswith("as backward call 2 found it (train.py:11)") for text in said)
    assert any(text.startswith("SHARED by loss_a (call 1) and loss_b (call 2)") for text in said)
    assert said.count("backward stops here") == 1
    assert "freed by call 1" in said
    assert "encoder · Linear" in said
    assert "head_b.weight" in said
    # What only loss_a needs was freed by its call, though that call's own look found it live.
    at = said.index("PowBackward0")
    assert said[at + 1 : at + 3] != ["live"]
    assert said.count("live") <= 1 + 2  # the legend, and the two nodes that only loss_b needs


def test_a_suppressed_finding_is_not_what_is_drawn(tmp_path: Path) -> None:
    file = recorded(tmp_path, TWO_LOSSES)
    (tmp_path / "pyproject.toml").write_text('[tool.gradscope]\nignore = ["GS101", "GS102"]\n')
    done = gradscope("draw", file, "-o", "drawn.svg", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "backward stops here" not in texts(tmp_path / "drawn.svg")
    (tmp_path / "pyproject.toml").write_text("[tool.gradscope]\nignroe = []\n")
    done = gradscope("draw", file, "-o", "drawn.svg", cwd=tmp_path)
    assert (done.returncode, "did you mean 'ignore'?" in done.stderr) == (2, True)


def test_a_recording_gives_the_same_picture_as_the_run(two_losses: Path, tmp_path: Path) -> None:
    done = gradscope("draw", two_losses, "-o", tmp_path / "later.svg")
    said = f"picture: {tmp_path / 'later.svg'}\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")
    live = two_losses.with_name("live.svg")
    assert (tmp_path / "later.svg").read_bytes() == live.read_bytes()


def test_iterations_meet_in_the_one_shared_y(tmp_path: Path) -> None:
    run = recorded(tmp_path, SHARED_Y)
    assert gradscope("draw", run, "-o", tmp_path / "y.svg").returncode == 0
    said = texts(tmp_path / "y.svg")
    assert "built before backward call 1" in said
    assert "built after backward call 1" in said
    assert "enters the shared part or an older graph" in said
    at = said.index("backward stops here")
    assert "MmBackward0" in said[at : at + 3]


@pytest.mark.parametrize(
    ("suffix", "begins"), [("png", b"\x89PNG"), ("dot", b"digraph gradscope {")]
)
def test_formats(two_losses: Path, tmp_path: Path, suffix: str, begins: bytes) -> None:
    assert gradscope("draw", two_losses, "-o", tmp_path / f"graph.{suffix}").returncode == 0
    assert (tmp_path / f"graph.{suffix}").read_bytes().startswith(begins)


def drawn(run: Path, *options: str) -> list[str]:
    """Return the texts of the picture that ``gradscope draw`` makes."""
    picture = run.with_name("drawn.svg")
    done = gradscope("draw", run, "-o", picture, *options)
    assert (done.returncode, done.stderr) == (0, "")
    return texts(picture)


def test_an_earlier_call_is_drawn_as_it_was(two_losses: Path) -> None:
    first = drawn(two_losses, "--call", "1", "--sites")
    assert first[0] == "Backward graph of loss_a"
    assert first[1].endswith("as backward call 1 found it (train.py:10)")
    assert "freed" not in first
    assert "train.py:7 in <module>" in first


def test_the_options_reach_the_picture(two_losses: Path, tmp_path: Path) -> None:
    assert drawn(two_losses, "--no-fold").count("encoder.weight") == 1
    focused = drawn(two_losses, "--focus", "finding")
    assert "backward stops here" in focused
    assert "nodes folded" in focused[1]
    assert "head_b · Linear" in drawn(two_losses, "--focus", "head_b", "--call", "2")
    unknown = gradscope("draw", two_losses, "--focus", "head_c", "-o", tmp_path / "graph.svg")
    refused(
        unknown, "gradscope: nothing in this graph is called 'head_c'; did you mean 'head_b'?\n"
    )


def test_a_folded_row_stands_for_all_its_calls(tmp_path: Path) -> None:
    run = recorded(tmp_path, HEALTHY)
    third = drawn(run, "--call", "3")[1]
    assert "as backward call 3 found it (train.py:7), as alike call 1 did" in third
    assert "the first of 4 alike" in drawn(run)[1]


def test_a_page_from_a_run_and_from_its_recording(two_losses: Path, tmp_path: Path) -> None:
    done = gradscope("report", two_losses, "--html", tmp_path / "later.html")
    said = f"page: {tmp_path / 'later.html'}\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")
    page = (tmp_path / "later.html").read_text(encoding="utf-8")
    assert page == two_losses.with_name("live.html").read_text(encoding="utf-8")
    assert page.lower().startswith("<!doctype html>")
    assert "default-src 'none'" in page


def test_what_was_written_is_said_in_text_only(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HEALTHY)
    views = ("--html", "page.html", "--draw", "graph.svg")
    text = gradscope("run", *views, "train.py", cwd=tmp_path)
    assert (text.stdout, text.returncode) == ("ran\n", 0)
    assert "page: page.html\npicture: graph.svg\n" in text.stderr
    machine = gradscope("run", *views, "--format", "json", "train.py", cwd=tmp_path)
    assert json.loads(machine.stderr)["findings"] == []


def test_files_are_written_where_the_program_was_started(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os\nos.chdir('/')\n" + HEALTHY)
    files = {"--html": "page.html", "--draw": "graph.svg", "--save": "run.gscope"}
    options = [word for pair in files.items() for word in pair]
    assert gradscope("run", *options, "train.py", cwd=tmp_path).returncode == 0
    assert {file.name for file in tmp_path.iterdir()} == {"train.py", *files.values()}


def test_a_run_without_a_graph_keeps_its_status_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(NO_BACKWARD)
    done = gradscope("run", "--draw", "graph.svg", "train.py", cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("ran\n", 0)
    assert "gradscope: graph.svg was not written: no backward call was made" in done.stderr
    assert not (tmp_path / "graph.svg").exists()
    (tmp_path / "train.py").write_text("print('ran')")
    done = gradscope("run", "--draw", "graph.svg", "--html", "page.html", "train.py", cwd=tmp_path)
    assert "page.html and graph.svg were not written" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


@pytest.mark.full(but=6)
@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["run", "--draw", "graph.bmp", "train.py"], ".svg, .png, .dot"),
        (["run", "--draw", "graph", "train.py"], "file without suffix"),
        (["run", "--draw", "missing/graph.svg", "train.py"], "missing/graph.svg"),
        (["run", "--draw", "folder.svg", "train.py"], "folder.svg"),
        (["run", "--html", "missing/page.html", "train.py"], "missing/page.html"),
        (["run", "--html", "folder.svg", "train.py"], "folder.svg"),
        (["report", "run.gscope", "--html", "missing/page.html"], "missing/page.html"),
        (
            ["report", "run.gscope", "--memory", "--format", "json"],
            "--memory and --trains print",
        ),
        (
            ["report", "run.gscope", "--trains", "--format", "json"],
            "--memory and --trains print",
        ),
        (["draw", "run.gscope"], "--output"),
        (
            ["report", "run.gscope", "run.gscope", "--html", "page.html"],
            "takes the recordings of one run",
        ),
        (["draw", "nowhere.gscope", "-o", "graph.svg"], "nowhere.gscope"),
        (["draw", "train.py", "-o", "graph.svg"], "train.py"),
        (["draw", "run.gscope", "-o", "graph.svg", "--call", "9"], "no backward call 9"),
        (["draw", "run.gscope", "-o", "graph.svg", "--call", "0"], "--call"),
        (["draw", "run.gscope", "-o", "graph.svg", "--focus", "finding"], "no finding"),
        (["draw", "run.gscope", "-o", "graph.bmp"], ".svg, .png, .dot"),
        (["draw", "run.gscope", "-o", "missing/graph.svg"], "missing/graph.svg"),
        (["draw", "empty.gscope", "-o", "graph.svg"], "no backward call was made"),
    ],
)
def test_used_wrongly(recordings: Path, args: Sequence[str], says: str) -> None:
    refused(gradscope(*args, cwd=recordings), says)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    recorded(folder, NO_BACKWARD)
    (folder / "run.gscope").rename(folder / "empty.gscope")
    recorded(folder, HEALTHY)
    (folder / "folder.svg").mkdir()
    return folder


def test_a_file_that_was_there_is_left_alone_when_nothing_is_drawn(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(NO_BACKWARD)
    (tmp_path / "graph.svg").write_text("mine")
    gradscope("run", "--draw", "graph.svg", "train.py", cwd=tmp_path)
    assert (tmp_path / "graph.svg").read_text() == "mine"


def test_drawing_a_recording_does_not_import_torch(two_losses: Path, tmp_path: Path) -> None:
    code = f"""
import sys
sys.argv = ["gradscope", "draw", {str(two_losses)!r}, "-o", {str(tmp_path / "graph.svg")!r}]
from gradscope.cli import main
main()
print("torch" in sys.modules)
"""
    done = ran_well(sys.executable, "-c", code)
    assert done.stdout.endswith("False\n")

"""The tutorial, the page on programs that run, those of error messages: each command prints what the page shows.

A line ``…`` on a page stands for lines that are left out. Times, versions and the last digits of
numbers may differ; the test's folder is left out of paths.
"""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.zygote import python

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TUTORIAL = DOCS / "tutorial.md"
STORIES = DOCS / "stories.md"
REHEARSED = [TUTORIAL, STORIES, DOCS / "recipes" / "agents.md"]
PAGES = [*REHEARSED, DOCS / "why.md", DOCS / "json.md", DOCS / "recipes" / "running.md"]
PAGES += sorted((DOCS / "errors").glob("*.md"))

PROGRAM = re.compile(r"^```python\n(# (\S+\.py)\n.*?)^```$", re.MULTILINE | re.DOTALL)
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d+(?:\.\d+)+(?:\+\w+)?")
TIMED = re.compile(r"\d:\d\d:\d\d|\d+(?= seconds in all)|[\d,.]+ a second|(?<=after )\d+ s\b")

PINS = (ROOT / "constraints.txt").read_text(encoding="utf-8")
of_pinned_torch = pytest.mark.skipif(
    f"torch=={torch.__version__.partition('+')[0]}\n" not in PINS,
    reason="the pages show the words of the torch that is pinned",
)
pytestmark = pytest.mark.full


def steps(page: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a page, in order, with the lines shown below it."""
    for block in CONSOLE.findall(page):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *shown = part.splitlines()
            yield command, shown


def environment(folder: Path, interpreter: str) -> dict[str, str]:
    """An environment whose ``python`` and ``gradscope`` are those under test.

    Runs are rehearsed by the real interpreter alone.
    """
    tools = folder / "tools"
    tools.mkdir()
    for name, command in {"python": "", "gradscope": "-m gradscope"}.items():
        (tools / name).write_text(f'#!/bin/sh\nexec {interpreter} {command} "$@"\n')
        (tools / name).chmod(0o755)
    return os.environ | {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "COLUMNS": "80",
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",
        "GRADSCOPE_NO_REHEARSAL": "" if interpreter == sys.executable else "1",
    }


def printed(command: str, folder: Path, env: dict[str, str]) -> list[str]:
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    return done.stdout.replace(f"{folder}{os.sep}", "").rstrip("\n").split("\n")


def alike(shown: str, line: str) -> bool:
    """Whether two lines are the same but for small differences of numbers and for versions."""
    shown, line = TIMED.sub("some time", shown), TIMED.sub("some time", line)
    if NUMBER.sub("#", shown) != NUMBER.sub("#", line):
        return False
    if "Python 3." in shown:
        return True
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(line), strict=True)
    return all(float(a) == pytest.approx(float(b), rel=0.05, abs=0.02) for a, b in pairs)


def missing(shown: list[str], lines: list[str]) -> list[str]:
    """The first part of what a page shows that does not come in the lines, in its order."""
    parts: list[list[str]] = [[]]
    for line in shown:
        if line == "…":
            parts.append([])
        else:
            parts[-1].append(line)
    at = 0
    for number, part in enumerate(parts):
        places: Iterable[int] = range(at, len(lines) - len(part) + 1)
        if number == 0:
            places = [i for i in places if i == 0]
        if number == len(parts) - 1 and part:  # an empty one: the page ends with a `…`
            places = [i for i in places if i + len(part) == len(lines)]
        here = (i for i in places if all(map(alike, part, lines[i : i + len(part)])))
        found = next(here, None)
        if found is None:
            return part
        at = found + len(part)
    return []


def faults(path: Path, folder: Path, interpreter: str) -> str:
    """What the first command prints that does not print what the page shows; empty if all do."""
    page = path.read_text(encoding="utf-8")
    env = environment(folder, interpreter)
    work = folder / "work"
    work.mkdir()
    for program, name in PROGRAM.findall(page):
        (work / name).write_text(program, encoding="utf-8")
    for command, shown in steps(page):
        lines = printed(command, work, env)
        if lacks := missing(shown or [""], lines):
            said = [f"$ {command}", "the page shows", *lacks, "", "the command prints", *lines]
            return "\n".join(said)
    return ""


@of_pinned_torch
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_commands_print_what_the_page_shows(path: Path, tmp_path: Path) -> None:
    interpreter = sys.executable if path in REHEARSED else python()
    if fault := faults(path, tmp_path, interpreter):
        pytest.fail(fault, pytrace=False)


def test_the_landing_page_shows_a_part_of_each_story() -> None:
    told = list(steps((DOCS / "index.md").read_text(encoding="utf-8")))
    assert len(told) == 4
    for command, shown in told:
        first = next(lines for each, lines in steps(STORIES.read_text("utf-8")) if each == command)
        assert not missing(shown, first), command


def test_the_moving_picture_shows_what_the_tutorial_does() -> None:
    picture = (DOCS / "pictures" / "terminal.svg").read_text(encoding="utf-8")
    rows = shown_rows(picture)
    at = 0
    for command in ("gradscope run --save run.gscope train.py", "gradscope fix run.gscope --write"):
        at = rows.index(f"$ {command}", at) + 1
        shown = next(lines for each, lines in steps(TUTORIAL.read_text("utf-8")) if each == command)
        end = next(i for i in range(at, len(rows)) if rows[i].startswith("$ "))
        # What the program itself prints is broken at the border of the terminal.
        assert not missing(
            [line for line in shown if line], [line for line in rows[at:end] if line]
        )


def test_the_picture_moves_only_for_those_who_like_motion() -> None:
    picture = (DOCS / "pictures" / "terminal.svg").read_text(encoding="utf-8")
    still, _, moving = picture.partition("@media (prefers-reduced-motion:no-preference){")
    moving, _, rest = moving.partition("</style>")
    assert "animation" in moving
    assert "animation" not in still + rest
    assert "http" not in picture.replace('xmlns="http://www.w3.org/2000/svg"', "")


def shown_rows(picture: str) -> list[str]:
    """The rows of the terminal in a picture: texts of one height, each in its column."""
    rows: dict[int, str] = {}
    for x, y, text in re.findall(r'<text x="([\d.]+)" y="(\d+)"[^>]*>([^<]*)</text>', picture):
        column = round(float(x) / 8.4)
        rows[int(y)] = rows.get(int(y), "").ljust(column) + html.unescape(text)
    return [rows[y] for y in sorted(rows)]


def test_the_tutorial_installs_as_the_readme_does() -> None:
    setup = re.search(r"^```bash\n(.*?)^```$", TUTORIAL.read_text(encoding="utf-8"), re.M | re.S)
    assert setup
    install = next(line for line in setup[1].splitlines() if line.startswith("pip install"))
    assert f"\n{install}\n" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_picture_of_the_tutorial_is_that_of_its_command(tmp_path: Path) -> None:
    page = TUTORIAL.read_text(encoding="utf-8")
    for program, name in PROGRAM.findall(page):
        (tmp_path / name).write_text(program, encoding="utf-8")
    env = environment(tmp_path, python())
    commands = [
        command for command, _ in steps(page) if re.search(r" run --save run| draw ", command)
    ]
    assert len(commands) == 2
    for command in commands:
        printed(command, tmp_path, env)
    words = [
        sorted(re.findall(r">([^<>\n]+)<", file.read_text(encoding="utf-8")))
        for file in (tmp_path / "graph.svg", DOCS / "pictures/tutorial.svg")
    ]
    assert words[0] == words[1]


def test_cells_of_the_tutorial_show_what_it_shows() -> None:
    nbformat: Any = pytest.importorskip("nbformat")
    nbclient: Any = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    page = TUTORIAL.read_text(encoding="utf-8").partition("## In a notebook")[2]
    cells = re.findall(r"^```ipython\n(.*?)\n```$", page, re.M | re.S)
    shown = re.findall(r"^```text\n(.*?)\n```$", page, re.M | re.S)
    assert len(cells) == 2
    assert len(shown) == 1
    cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    (output,) = notebook.cells[1].outputs
    assert not missing(shown[0].splitlines(), output["data"]["text/plain"].splitlines())


@pytest.mark.parametrize(
    ("shown", "lacks"),
    [
        (["a", "…", "c"], []),
        (["…", "b 1.01", "c"], []),
        (["a", "…"], []),
        (["a", "b 1.00"], ["a", "b 1.00"]),
        (["…", "b 1.00"], ["b 1.00"]),
        (["…", "b 1.50", "c"], ["b 1.50", "c"]),
        (["…", "x", "…"], ["x"]),
        (["b 1.00", "c"], ["b 1.00", "c"]),
    ],
)
def test_what_a_page_lacks_is_found(shown: list[str], lacks: list[str]) -> None:
    assert missing(shown, ["a", "b 1.00", "c"]) == lacks

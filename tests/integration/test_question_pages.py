"""The pages of questions: every program is run, and must print and draw what its page shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.command import ENVIRONMENT, ran_well
from tests.integration.test_pages_run import PROGRAM

DOCS = Path(__file__).parents[2] / "docs"
FOLDER = DOCS / "questions"
PAGES = sorted(path.name for path in FOLDER.glob("*.md") if path.name != "README.md")

pytestmark = pytest.mark.full

if not hasattr(os, "fork"):
    pytest.skip("the pages are run in forks", allow_module_level=True)


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest) -> dict[str, Any]:
    """All pages that this run asks for, with what their programs print and draw now."""
    items = [item for item in request.session.items if item.path == request.path]
    asked = {name for name in PAGES if any(name in item.name for item in items)}
    done = ran_well(sys.executable, DOCS / "make_questions.py", "--json", *sorted(asked))
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def compared(page: str) -> list[str]:
    """A page's lines; durations and shares of time, which no two runs have in common, are left out."""
    page = re.sub(r" +\d+\.\d+ ms", " N ms", page)
    return re.sub(r"\d+\.\d+% of", "N% of", page).splitlines()


def words(svg: str) -> list[str]:
    """What stands in a picture; where it stands is the layout engine's."""
    return sorted(re.findall(r">([^<>\n]+)<", svg))


@pytest.mark.full(but=5)
@pytest.mark.parametrize("name", PAGES)
def test_page_shows_what_its_programs_print(name: str, made: dict[str, Any]) -> None:
    page = (FOLDER / name).read_text(encoding="utf-8")
    assert "```python\n# " in page
    assert re.search(r"^\$ (python|gradscope) .*\n", page, re.MULTILINE)
    assert compared(made[name]["text"]) == compared(page)


@pytest.mark.parametrize("name", PAGES)
def test_page_shows_what_its_programs_draw(name: str, made: dict[str, Any]) -> None:
    page = (FOLDER / name).read_text(encoding="utf-8")
    assert set(re.findall(r"\(pictures/(.*?)\)", page)) == set(made[name]["pictures"])
    for picture, svg in made[name]["pictures"].items():
        assert words((FOLDER / "pictures" / picture).read_text(encoding="utf-8")) == words(svg)


def test_every_question_has_its_page() -> None:
    questions = {"a": 6, "b": 3, "c": 2, "d": 6, "e": 7, "f": 1}
    wanted = [f"{part}{n}" for part, count in questions.items() for n in range(1, count + 1)]
    assert [name.partition("-")[0] for name in PAGES] == wanted


def test_index_has_every_page_with_its_title() -> None:
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    for name in PAGES:
        first = (FOLDER / name).read_text(encoding="utf-8").splitlines()[0]
        code, _, title = first.removeprefix("# ").partition(". ")
        assert f"- [{code}]({name}) {title}\n" in index


@pytest.mark.parametrize("name", ["b2-alias-or-detach.md", "e1-reused-by-mistake.md"])
def test_the_shown_output_is_also_that_of_processes_of_their_own(name: str, tmp_path: Path) -> None:
    page = (FOLDER / name).read_text(encoding="utf-8")
    for program, file in PROGRAM.findall(page):
        (tmp_path / file).write_text(program, encoding="utf-8")
    for command, output in re.findall(
        r"^```console\n\$ ([^\n]*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL
    ):
        program = ("-m", "gradscope") if command.startswith("gradscope") else ()
        done = subprocess.run(
            [sys.executable, *program, *command.split()[1:]],
            cwd=tmp_path,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.stdout == output

"""The README is short, has the words of torch, counts right, and compares by what was run."""

from __future__ import annotations

import re
from importlib import import_module

import pytest
import torch

from tests.command import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_is_short_and_begins_with_the_picture() -> None:
    assert len(README.split()) <= 700
    _, picture, sentence, *_ = re.split(r"\n\n+", README)
    assert re.fullmatch(r"!\[.+\]\(docs/pictures/terminal\.svg\)", picture)
    assert re.fullmatch(r"\*\*[^.]+\.\*\*", sentence.replace("\n", " "))


def table_of_peers(page: str) -> list[str]:
    """The rows of the table that compares tools."""
    found = re.search(r"^\| tried .*\n\|---\|.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert found
    return found[1].splitlines()


def test_both_tables_of_peers_are_the_same() -> None:
    other = (ROOT / "docs/compared.md").read_text(encoding="utf-8")
    assert table_of_peers(README) == table_of_peers(other)


@pytest.mark.full
def test_peers_answer_what_the_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    peers = import_module("peers")
    answers = peers.answers(peers.available())
    columns = [list(peers.TOOLS).index(tool) for tool in peers.available()]
    assert columns[:2] == [0, 1]
    for row, (question, yes) in zip(table_of_peers(README), answers.items(), strict=True):
        shown, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        assert (shown, [cells[column] == "✓" for column in columns]) == (question, yes)


def test_readme_opens_with_the_words_of_torch() -> None:
    opening = " ".join(README.split("```")[1].split())
    errors = [error.strip() for error in opening.split("RuntimeError: ") if error]
    for error, cause in zip(errors, ("freed", "changed", "detached"), strict=True):
        hidden = torch.ones(2, requires_grad=True).exp()
        loss = hidden.sum()
        if cause == "freed":
            loss.backward(retain_graph=False)
        elif cause == "changed":
            hidden += 1
        else:
            loss = loss.detach()
        with pytest.raises(RuntimeError, match=re.escape(error)):
            loss.backward()


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_question_pages_are_counted(page: str) -> None:
    pages = set((ROOT / "docs/questions").glob("*.md")) - {ROOT / "docs/questions/README.md"}
    assert f"{len(pages)} questions" in " ".join((ROOT / page).read_text("utf-8").split())


GUIDES = ("README.md", "CONTRIBUTING.md", "docs/index.md", "docs/tutorial.md", "docs/fix.md")


@pytest.mark.parametrize("page", GUIDES)
def test_guides_promise_no_durations(page: str) -> None:
    # How long it takes depends on the machine, so no test could try it.
    text = (ROOT / page).read_text(encoding="utf-8")
    assert not re.findall(r".*\bminutes\b.*", text)

"""Every relative link and picture in the Markdown files leads to a file, and to a heading of it where it names one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gradscope

ROOT = Path(__file__).parents[2]
WHERE = ("*.md", "docs/**/*.md", "examples/*.md", "benchmarks/*.md")
FILES = [file for where in WHERE for file in ROOT.glob(where)]
FOLDERS, PAGES = ("commands", "findings", "python"), ("benchmarks", "changelog", "contributing")
MADE = {ROOT / "docs" / name for name in (*FOLDERS, *(f"{page}.md" for page in PAGES))}
"""These pages are there only while the site is built, strictly: that checks links to them."""


def links(path: Path) -> list[str]:
    text = re.sub(
        r"^```.*?^```$|`[^`\n]*`",
        "",
        path.read_text(encoding="utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:", link)]


def anchors(path: Path) -> set[str]:
    """The names under which the headings of a page can be reached."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    named = {name for heading in headings for name in re.findall(r"\{ #([\w-]+) \}$", heading)}
    return named | {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for link in links(path):
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if not MADE.isdisjoint((target, *target.parents)):
            continue
        assert target.exists(), f"{path.name} links to {link}"
        assert not anchor or anchor in anchors(target), f"{path.name} links to {link}"


def test_there_are_links() -> None:
    assert len(links(ROOT / "README.md")) > 3


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_of_functions_exist(path: Path) -> None:
    called = set(re.findall(r"\bgradscope\.([a-z_]+)\(", path.read_text(encoding="utf-8")))
    assert called <= {*gradscope.__all__}

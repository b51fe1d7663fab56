"""Every relative link of a page leads to a file of the checkout, and to a heading that is there."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

import gradscope

ROOT = Path(__file__).parents[2]
FENCED = re.compile(r"^( *)(```+)[^`\n]*\n.*?^\1\2$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")
ELSEWHERE = re.compile(r"[a-z]+:", re.IGNORECASE)


def tracked(*patterns: str) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a checkout of git's")
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]


@cache
def prose(page: Path) -> str:
    """The text of a page without the code in it, which may look like links."""
    return FENCED.sub("", page.read_text(encoding="utf-8"))


@cache
def anchors(page: Path) -> set[str]:
    """What a link may name in a page: headings, as code hosts and MkDocs call them, and own anchors."""
    named = set(re.findall(r"<a id=\"([^\"]+)\">", prose(page)))
    seen: dict[str, int] = {}
    for heading in re.findall(r"^#+ +(.*?) *$", prose(page), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        named.add(slug if slug not in seen else f"{slug}-{seen[slug]}")
        seen[slug] = seen.get(slug, 0) + 1
    return named


def dead_links(page: Path) -> list[str]:
    """The links of a page that lead nowhere in the checkout."""
    dead = []
    for found in LINK.finditer(CODE.sub("", prose(page))):
        link = found[1] or found[2]
        if ELSEWHERE.match(link):
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        is_there = file.exists() and file.is_relative_to(ROOT)
        if not is_there or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            dead.append(link)
    return dead


def test_every_relative_link_leads_somewhere_in_the_checkout() -> None:
    pages = tracked("*.md")
    assert len(pages) > 50
    dead = {page: links for page in pages if (links := dead_links(ROOT / page))}
    assert not dead


def test_names_of_functions_exist() -> None:
    for page in tracked("*.md"):
        called = set(re.findall(r"\bgradscope\.([a-z_]+)\(", (ROOT / page).read_text("utf-8")))
        assert called <= {*gradscope.__all__}, page


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A heading: `code`\n[1](page.md#a-heading-code) [2](page.md#other) [3](https://x.org)\n"
        "[4](none.md) `[5](code.md)`\n\n```text\n[6](fenced.md)\n```\n",
        encoding="utf-8",
    )
    assert set(dead_links(page)) >= {"page.md#other", "none.md"}
    assert anchors(page) == {"a-heading-code"}
    assert not {"code.md", "fenced.md", "https://x.org"} & set(dead_links(page))

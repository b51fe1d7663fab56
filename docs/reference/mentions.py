"""Finds the pages that show something at work."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

DOCS = Path(__file__).parents[1]
MOST = 6


def shown_in(pattern: str) -> str:
    """Return a section with links to the pages whose code or output has a pattern, or nothing.

    It is for a page in a separate folder; ``pattern`` is a regular expression.
    """
    found = [
        f"- [{title}](../{path})" for path, (title, code) in _pages() if re.search(pattern, code)
    ]
    return "\n".join(["## At work\n", *found[:MOST]]) + "\n" if found else ""


@cache
def _pages() -> tuple[tuple[str, tuple[str, str]], ...]:
    """Return each page's name with its title and all its blocks of code."""
    guides = [path for path in DOCS.glob("*.md") if path.stem not in ("index", "release")]
    folders = [path for name in ("recipes", "errors", "questions") for path in _in(name)]
    return tuple((path.relative_to(DOCS).as_posix(), _read(path)) for path in guides + folders)


def _in(folder: str) -> list[Path]:
    return [path for path in sorted((DOCS / folder).glob("*.md")) if path.stem != "README"]


def _read(path: Path) -> tuple[str, str]:
    text = path.read_text(encoding="utf-8")
    blocks = re.findall(r"^```.*?^```$", text, re.MULTILINE | re.DOTALL)
    return text.partition("\n")[0].removeprefix("# "), "\n".join(blocks)

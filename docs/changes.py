"""How pages and pictures that were just made differ from those that are there."""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path


def report_changes(made: dict[Path, str]) -> int:
    """Print how files would change with these new texts; return 1 if one would, else 0.

    Durations do not count, nor where the layout engine puts the words of a picture.
    """
    found = []
    for path, new in made.items():
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        part = {".svg": _words, ".ipynb": _cells}.get(path.suffix, _lines)
        names = path.name, f"{path.name}, made again"
        found += difflib.unified_diff(part(old), part(new), *names, lineterm="", n=1)
    print(*found, sep="\n", end="\n" if found else "")  # noqa: T201
    return int(bool(found))


def _lines(page: str) -> list[str]:
    """Return the lines of a page, without what no two runs have in common."""
    page = re.sub(r" +\d+\.\d+ ms", " N ms", page)
    page = re.sub(r"\d+\.\d+% of", "N% of", page)
    return re.sub(r"\d+\.\d\d / \d+\.\d\d", "N / N", page).splitlines()


def _words(svg: str) -> list[str]:
    """Return what stands in a picture, in an order that does not depend on its place."""
    return sorted(re.findall(r">([^<>\n]+)<", svg))


def _cells(notebook: str) -> list[str]:
    """Return what stands in the cells of a notebook and below them, as plain text."""
    found = []
    for cell in json.loads(notebook or '{"cells": []}')["cells"]:
        found.append("".join(cell["source"]))
        for output in cell.get("outputs", ()):
            shown = output.get("data", {}).get("text/plain", output.get("text", ()))
            found.append("".join(shown) + output.get("evalue", ""))
    return [line for text in found for line in text.splitlines()]

"""The recipes for frameworks: each command prints what the page shows, where the framework is installed."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_pages_run import DOCS, faults

pytestmark = pytest.mark.frameworks


def sections() -> Iterator[Any]:
    """The parts of the recipes with programs in them."""
    for name in ("lightning", "trainer", "accelerate"):
        parts = (DOCS / "recipes" / f"{name}.md").read_text(encoding="utf-8").split("\n## ")
        yield from (pytest.param(p, id=f"{name}-{i}") for i, p in enumerate(parts) if "```py" in p)


@pytest.mark.parametrize("section", sections())
def test_commands_print_what_the_recipe_shows(section: str, tmp_path: Path) -> None:
    imported = re.findall(r"^(?:import|from) (\w+)", section, re.MULTILINE)
    missing = [name for name in imported if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    path = tmp_path / "section.md"
    path.write_text(section, encoding="utf-8")
    if fault := faults(path, tmp_path, sys.executable):
        pytest.fail(fault, pytrace=False)

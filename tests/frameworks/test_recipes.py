"""The recipes for frameworks: each command prints what the page shows, where the framework is installed."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from tests.integration.test_pages_run import DOCS, faults

pytestmark = pytest.mark.frameworks


@pytest.mark.parametrize("framework", ["lightning", "trainer", "accelerate"])
def test_commands_print_what_the_recipe_shows(framework: str, tmp_path: Path) -> None:
    path = DOCS / "recipes" / f"{framework}.md"
    imported = re.findall(r"^(?:import|from) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    missing = [name for name in imported if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    if fault := faults(path, tmp_path, sys.executable):
        pytest.fail(fault, pytrace=False)

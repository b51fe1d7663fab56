"""Runs a program's file under a watch, for all tests of what is found in one."""

from __future__ import annotations

import gc
import linecache
import runpy
import sys
from pathlib import Path
from typing import Any

import gradscope
from gradscope.model import Finding


def found_in(path: Path) -> tuple[list[Finding], str, dict[str, Any]]:
    """Run a program; return what was found, the words of what it raised, and the variables that it left."""
    raised, left = "", dict[str, Any]()
    linecache.checkcache(str(path))
    with gradscope.watch() as scope:
        try:
            left = runpy.run_path(str(path), run_name="__main__")
        except RuntimeError as error:
            raised = str(error)
        assert not scope.recording().summary.notes
    gc.enable()  # the program may have turned it off
    assert sys.gettrace() is None
    return scope.findings, raised, left

"""Runs a program's file under a watch, for all tests of what is found in one."""

from __future__ import annotations

import gc
import linecache
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradscope
from gradscope.model import Finding
from gradscope.render.machine import to_json
from tests.reports import valid


def found_in(
    path: Path, keep: Callable[[dict[str, Any]], Any] = lambda variables: None
) -> tuple[list[Finding], str, Any]:
    """Run a program; return what was found, the words of what it raised, and what is to be kept of its variables.

    Its JSON report is as documented.
    """
    raised, kept = "", None
    linecache.checkcache(str(path))
    with gradscope.watch() as scope:
        try:
            kept = keep(runpy.run_path(str(path), run_name="__main__"))
        except RuntimeError as error:
            raised = str(error)
        recording = scope.recording()
        assert not recording.summary.notes, recording.summary.notes
    valid(to_json(recording))
    gc.enable()  # the program may have turned it off
    assert sys.gettrace() is None
    return scope.findings, raised, kept

"""`gradscope draw`: draw a graph of a saved recording."""

from __future__ import annotations

import sys
from pathlib import Path

from gradscope.commands.outputs import console_on, image
from gradscope.render.pictures.options import Options
from gradscope.rules.settings import DEFAULTS, Settings
from gradscope.rules.suppressing import Suppressor

_WIDEST = 1_000
"""Columns for a tree that goes to a file or another program, which can take lines of any length."""


def draw(
    file: Path,
    output: Path | None,
    call: int | None,
    options: Options,
    settings: Settings = DEFAULTS,
) -> int:
    """Draw a graph of a saved recording: to a file, or as a tree."""
    from gradscope.record.processes import load_run
    from gradscope.render.pictures.draw import recording_tree

    recording = Suppressor(settings).of_findings(load_run(file))
    console = console_on(sys.stdout)
    if output is not None:
        image(output, "--output", options, call).write(recording, console)
        return 0
    tree = recording_tree(recording, options, call=call)
    if not console.is_terminal:
        console.width = _WIDEST
    console.print(tree)
    return 0

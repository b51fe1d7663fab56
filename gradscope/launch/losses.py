"""Notes from which losses a program's backward calls started.

Each note is a line of JSON in a file, which ``fixing/runs.py`` reads.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any, TextIO

import torch

from gradscope.collect.calls import EngineCall
from gradscope.hooks import wrap_engine
from gradscope.program.sites import user_frames
from gradscope.torch_private import DisableTorchDispatch, DisableTorchFunction

_MOST_FRAMES = 8


def line_of(frame: FrameType | None) -> list[tuple[str, int]]:
    """Return the line of the program that runs in a frame and those of its callers."""
    line = []
    for each in user_frames(frame)[:_MOST_FRAMES]:
        line.append((each.f_code.co_filename, each.f_lineno))
        if each.f_code.co_name == "<module>" and each.f_globals.get("__name__") == "__main__":
            break  # what starts the program is none of its own
    return line


def value_of(roots: Sequence[Any]) -> float | None:
    """Return the loss that a call starts from, if that is a single number."""
    root = roots[0] if len(roots) == 1 else None
    if not isinstance(root, torch.Tensor) or root.is_meta or root.numel() != 1:
        return None
    with DisableTorchFunction(), DisableTorchDispatch(), torch.no_grad():
        return float(root) if root.is_floating_point() else None


def note_losses(notes: TextIO) -> None:
    """Note each call of ``backward`` on a single number into an open file from now on."""
    process = os.getpid()

    def run(engine: Any, roots: Any, *given: Any, **named: Any) -> Any:
        accumulates = EngineCall.of(roots, *given, **named).accumulates
        value = value_of(roots) if accumulates and os.getpid() == process else None
        if value is not None:
            notes.write(json.dumps([line_of(sys._getframe(1)), value]) + "\n")
        return engine(roots, *given, **named)

    wrap_engine(run)

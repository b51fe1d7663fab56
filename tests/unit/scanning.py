"""Scans for tests: what the bounded scan finds from a caller's variables, or from variables made up for it."""

from __future__ import annotations

import sys
import types
from typing import Any

import torch
from torch import Tensor

from gradscope.program.reach import Limits, Walk

Names = dict[str, Tensor]


def scan(*frames: types.FrameType, budget: Limits = Limits(max_seconds=60)) -> tuple[Names, int]:  # noqa: B008
    """The tensors by their names, and how many objects the scan has looked into."""
    walk = Walk(budget)
    walk.enter_frames(frames or (sys._getframe(1),))
    walk.run()
    found: Names = {}
    for tensor, paths in walk.named_tensors():
        for path in paths:
            found.setdefault(path.text, tensor)
    return found, walk.done


def frame_with(**variables: Any) -> types.FrameType:
    """The frame of a user's module that has only these variables."""
    namespace: dict[str, Any] = {**variables, "__name__": "__main__", "sys": sys}
    exec(compile("frame = sys._getframe()", "<stdin>", "exec"), namespace)
    frame: types.FrameType = namespace.pop("frame")
    return frame


def scan_variables(**variables: Any) -> Names:
    """What the scan finds when these are the only variables of a user's module."""
    return scan(frame_with(**variables))[0]


def made() -> Tensor:
    return torch.ones(2, requires_grad=True) * 2

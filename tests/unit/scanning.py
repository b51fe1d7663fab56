"""Scans for tests: what the bounded scan finds from a caller's variables, or from variables made up for it."""

from __future__ import annotations

import sys
import types
from typing import Any

import torch
from torch import Tensor

from gradscope.model.paths import Path
from gradscope.program.reach import Budget, Scan, visit

Names = dict[str, Tensor]


def scan(*frames: types.FrameType, budget: Budget = Budget(max_seconds=60)) -> tuple[Names, Scan]:  # noqa: B008
    found: Names = {}

    def note(path: Path, tensor: Tensor) -> None:
        found.setdefault(path.text, tensor)

    result = visit(frames or (sys._getframe(1),), budget, note)
    return found, result


def scan_variables(**variables: Any) -> Names:
    """What the scan finds when these are the only variables of a user's module."""
    namespace: dict[str, Any] = {**variables, "__name__": "__main__", "sys": sys}
    exec(compile("frame = sys._getframe()", "<stdin>", "exec"), namespace)
    return scan(namespace.pop("frame"))[0]


def made() -> Tensor:
    return torch.ones(2, requires_grad=True) * 2

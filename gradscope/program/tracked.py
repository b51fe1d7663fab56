"""Finds all objects of a kind that Python's collector tracks, named or not."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from gradscope.model.paths import Path, Step
from gradscope.program import layouts, referrers
from gradscope.program.containers import Contents, layout_of, look_at
from gradscope.program.reach import ON_DEMAND
from gradscope.torch_private import FunctionNode


def tracked(base: type) -> list[Any]:
    """Return all objects of this class, or one derived from it; takes some tens of milliseconds."""
    derived: dict[int, bool] = {}
    found = []
    for each in gc.get_objects():
        cls = type(each)
        if id(cls) not in derived:
            derived[id(cls)] = layouts.derives(cls, base)
        if derived[id(cls)]:
            found.append(each)
    return found


def tensors_with_graph() -> Iterator[Tensor]:
    """Return all tensors with a graph; no Node is touched by asking."""
    return (tensor for tensor in tracked(Tensor) if look_at(tensor)[0])


def contexts() -> Iterator[tuple[Path, Tensor]]:
    """Return the tensors with a graph that are attributes of a ``ctx``, with their names."""
    reader = Contents(ON_DEMAND.max_items)
    for context in tracked(FunctionNode):
        for kind, name, held in reader.of(context):
            if kind == "attribute" and layout_of(type(held)).is_tensor and look_at(held)[0]:
                origin = referrers.origin_of_context(context)
                yield Path.of(origin, "ctx", [Step(kind, name)]), held

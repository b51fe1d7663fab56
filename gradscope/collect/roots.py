"""Names the tensors that a backward call starts from, as the program's variables call them."""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch

from gradscope.collect.look import Look
from gradscope.collect.walk import root_node
from gradscope.model import Root
from gradscope.program.names import Names, names_in
from gradscope.program.sites import Place
from gradscope.program.tensors import describe


class RootNames:
    """Remembers the names of roots by the place of the call: they are the same in every
    iteration.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[int, int], tuple[str | None, ...]] = {}

    def name(
        self, outputs: Sequence[Any], look: Look, place: Place | None, frame: FrameType | None
    ) -> tuple[Root, ...]:
        """Return the roots of a call made in ``frame``, leaves left out."""
        key = (id(place), len(outputs))
        names = self._names.get(key)
        if names is None:
            named = [None] * len(outputs) if frame is None else names_in(frame, outputs)
            names = self._names[key] = tuple(named)
        roots = []
        for name, output in zip(names, outputs, strict=True):
            node = root_node(output)
            if node is not None and node in look.index:
                label = describe(output) if isinstance(output, torch.Tensor) else ""
                roots.append(Root(look.index[node], name, label))
        return tuple(roots)


def name_of_input(tensor: Any, names: Names) -> str:
    """Return what to call one of the ``inputs`` of a call."""
    if not isinstance(tensor, torch.Tensor):
        return "GradientEdge"
    return names.of_tensor(tensor) or describe(tensor)

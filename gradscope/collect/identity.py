"""Restores what saved-tensor hooks take away: the identity of saved tensors, and hooks on one of
them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from gradscope.collect.marks import Packed
from gradscope.collect.saving import Saving


class FunctionTensors:
    """Returns the very tensors that were saved as ``ctx.saved_tensors``, where torch would do so.

    Under hooks torch makes a new tensor of each: ``weight is ctx.saved_tensors[0]`` and attributes
    like ``weight.main_grad`` are lost.
    """

    def __init__(self, saving: Saving) -> None:
        self._saving = saving

    def read(self, ctx: Any, original: Callable[[Any], Any]) -> Any:
        """``ctx.saved_tensors``."""
        thread = threading.get_ident()
        read: list[Packed] = []

        def note(packed: Packed) -> None:
            if threading.get_ident() == thread:
                read.append(packed)
            if before is not None:
                before(packed)

        before, self._saving.reading = self._saving.reading, note
        try:
            values = original(ctx)
        finally:
            self._saving.reading = before
        unpacked = iter(read)
        if not isinstance(values, tuple):
            return values
        restored = []
        for value in values:
            packed = next(unpacked, None) if value is not None else None
            same = packed is not None and packed.original and packed.tensor is not None
            restored.append(packed.tensor if same and packed is not None else value)
        return tuple(restored)


def register_hooks(
    original: Callable[..., None],
    saved: Any,
    pack: Callable[[torch.Tensor], Any],
    unpack: Callable[[Any], torch.Tensor],
) -> None:
    """Put the hooks of ``SavedTensor.register_hooks`` inside ours, which are on it already."""
    packed = saved.data
    if not isinstance(packed, Packed) or packed.theirs is not None or packed.tensor is None:
        original(saved, pack, unpack)
        return
    with torch.no_grad():
        value = pack(packed.tensor.detach() if packed.original else packed.tensor)
    packed.theirs = (value, unpack)
    packed.tensor = None


def unpack(original: Callable[[Any], torch.Tensor], saving: Saving, saved: Any) -> torch.Tensor:
    """Return the very tensor that was saved from ``SavedTensor.unpack``, as checkpoints expect."""
    packed = saved.data
    if isinstance(packed, Packed) and packed.original and packed.tensor is not None:
        return saving.unpack(packed)
    return original(saved)

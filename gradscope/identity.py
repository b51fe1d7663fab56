"""Gives back what torch takes away under saved-tensor hooks: the identity of saved tensors, and the user's own hooks on one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from gradscope.saved import Packed


class _Unpacked(threading.local):
    def __init__(self) -> None:
        self.reading: list[Packed] | None = None


class FunctionTensors:
    """Answers ``ctx.saved_tensors`` with the tensors that were saved, where torch would return those very objects.

    Under hooks torch makes a new tensor of each: ``weight is ctx.saved_tensors[0]`` and attributes like ``weight.main_grad`` are lost.
    """

    def __init__(self) -> None:
        self._local = _Unpacked()

    def unpacked(self, packed: Packed) -> None:
        """Note a saved tensor that the unpack hook is asked for."""
        if self._local.reading is not None:
            self._local.reading.append(packed)

    def read(self, ctx: Any, original: Callable[[Any], Any]) -> Any:
        """``ctx.saved_tensors``."""
        before, self._local.reading = self._local.reading, []
        try:
            values = original(ctx)
            unpacked = iter(self._local.reading)
        finally:
            self._local.reading = before
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
    """``SavedTensor.register_hooks`` where our default hooks are already on the saved tensor: put the user's inside ours."""
    packed = saved.data
    if not isinstance(packed, Packed) or packed.theirs is not None or packed.tensor is None:
        original(saved, pack, unpack)
        return
    with torch.no_grad():
        value = pack(packed.tensor.detach() if packed.original else packed.tensor)
    packed.theirs = (value, unpack)
    packed.tensor = None

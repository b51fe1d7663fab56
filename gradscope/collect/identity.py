"""Restores what saved-tensor hooks take away: the identity of saved tensors, and hooks on one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from gradscope.collect import slots
from gradscope.collect.engine_words import DETACHED, PACK_HOOK_MODIFIES
from gradscope.collect.marks import Packed
from gradscope.collect.notes import Notes, raised_by_program
from gradscope.collect.saving import Saving
from gradscope.program.tensors import version_of
from gradscope.torch_private import (
    FUNCTION_APPLY,
    DisableTorchFunction,
    hidden_from_compiler,
    itself_hidden_from_compiler,
)


@itself_hidden_from_compiler
def read_saved_tensors(ctx: Any, original: Callable[[Any], Any], notes: Notes) -> Any:
    """Return ``ctx.saved_tensors`` with the very tensors that were saved, where torch would.

    Under hooks torch makes a new tensor of each: ``weight is ctx.saved_tensors[0]`` and attributes
    like ``weight.main_grad`` are lost. What unpacking runs meanwhile may read saved tensors of its
    own (a checkpoint runs its forward again), so each is asked for what it holds itself.
    """
    if FUNCTION_APPLY is None:  # no frame has told what is a Function's
        _mark(ctx)
    values = original(ctx)
    if not isinstance(values, tuple):
        return values
    try:
        saved = slots.saved(ctx, "tensors")
        if len(saved) != len(values):
            return values
        return _restored(values, saved)
    except Exception as failure:
        if raised_by_program(failure):
            raise
        notes.failed("restoring what a Function saved failed in gradscope", failure)
        return values


@hidden_from_compiler
def _mark(ctx: Any) -> None:
    """Note that a Function saved these tensors: of them torch does not tell whether they were
    detached in place.
    """
    with suppress(RuntimeError, AttributeError):  # freed; none saved
        for each in slots.saved(ctx, "tensors"):
            if isinstance(each.data, Packed):
                each.data.by_function = True


@hidden_from_compiler
def _restored(values: tuple[Any, ...], saved: tuple[Any, ...]) -> tuple[Any, ...]:
    restored = []
    for value, each in zip(values, saved, strict=True):
        data: Any = None if value is None else each.data
        if isinstance(data, Packed) and data.original and data.tensor is not None:
            restored.append(data.tensor)
            with DisableTorchFunction():
                slots.part_from_leaf(value)
        else:
            restored.append(value)
    return tuple(restored)


@itself_hidden_from_compiler
def register_hooks(
    original: Callable[..., None],
    saved: Any,
    pack: Callable[[torch.Tensor], Any],
    unpack: Callable[[Any], torch.Tensor],
) -> None:
    """Put the hooks of ``SavedTensor.register_hooks`` inside ours, which are on it already."""
    packed = slots.held_by(saved)
    if not isinstance(packed, Packed) or packed.theirs is not None or packed.tensor is None:
        original(saved, pack, slots.foreign(unpack))
        return
    given = packed.tensor.detach() if packed.original else packed.tensor
    version = version_of(given)
    with torch.no_grad():
        value = pack(given)
    if version_of(given) != version:
        raise RuntimeError(PACK_HOOK_MODIFIES)
    packed.theirs = (value, unpack)
    packed.tensor = None


@itself_hidden_from_compiler
def unpack(original: Callable[[Any], torch.Tensor], saving: Saving, saved: Any) -> torch.Tensor:
    """Return the very tensor that was saved from ``SavedTensor.unpack``, as checkpoints expect."""
    packed = slots.held_by(saved)
    if isinstance(packed, Packed) and packed.original and packed.tensor is not None:
        if packed.is_detached:  # torch says so to who unpacks it for no node, whichever runs
            raise RuntimeError(DETACHED)
        return saving.unpack(packed)
    return original(saved)

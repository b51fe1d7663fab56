"""Reads what a node's saved tensors hold without unpacking it, on any torch.

Since 2.13 torch's ``SavedTensor`` says it itself (``data``, ``unpack_hook``). Before, a saved
tensor is read by unpacking it, while our own unpack hook, which torch then calls, notes what it was
called with and gives a stand-in. One that is stale cannot be read so; as torch checks
that only where no hooks are, it is given hooks, which do torch's check.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import Node

from gradscope.torch_private import (
    RAW_SAVED,
    SAVED,
    SAVED_TENSORS_ARE_READABLE,
    FunctionNode,
    read_saved_by_function,
    read_version,
)

FREED_TEXT = "Trying to backward through the graph a second time"
_VERSION = re.compile(r"is at version (\d+); expected version (\d+) instead")
MODIFIED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation"
)


@dataclass(frozen=True, slots=True)
class Slot:
    """A saved tensor as torch 2.13 shows it: ``data`` is None once it was freed.

    ``unpack_hook`` is always None here: hooks of the program's that our own have not seen cannot
    be told before 2.13.
    """

    data: Any
    unpack_hook: Any = None

    def unpack(self) -> Any:
        """Return ``data``: whether it was detached in place since is not told before 2.13."""
        return self.data


class _Met(threading.local):
    """What our unpack hook was called with while a saved tensor is read; None while none is."""

    def __init__(self) -> None:
        self.data: list[Any] | None = None


_met = _Met()
_stand_in = torch.empty(0, device="cpu")
_stand_in_storage = _stand_in.untyped_storage()._cdata


def versions_in(error: RuntimeError) -> tuple[int, int] | None:
    """Return the versions that the engine's error for a stale tensor names: now, and then."""
    found = _VERSION.search(str(error))
    return None if found is None else (int(found[1]), int(found[2]))


def readable(unpack: Callable[[Any], torch.Tensor]) -> Callable[[Any], torch.Tensor]:
    """Return an unpack hook that can be read through."""
    if SAVED_TENSORS_ARE_READABLE:
        return unpack

    def unpack_or_note(data: Any) -> torch.Tensor:
        met = _met.data
        if met is None:
            return unpack(data)
        met.append(data)
        return _stand_in

    return unpack_or_note


READ_THROUGH = next(
    (c for c in readable.__code__.co_consts if getattr(c, "co_name", "") == "unpack_or_note"), None
)
"""The code of the hooks that ``readable`` returns, which is in the way of a traceback."""


def saved(node: Node, name: str) -> Any:
    """Return the saved tensor of that name, or a list of them: objects with ``data`` and
    ``unpack_hook``, or None.

    Raise the engine's RuntimeError for a list that was freed.
    """
    raw = getattr(node, RAW_SAVED + name)
    if SAVED_TENSORS_ARE_READABLE or raw is None:
        return raw
    if isinstance(raw, tuple | list):
        if isinstance(node, FunctionNode):
            return _slots(raw, lambda: read_saved_by_function(node))
        return _slots(raw, lambda: getattr(node, SAVED + name))
    return _slots([raw], lambda: (getattr(node, SAVED + name),))[0]


def held_by(each: Any) -> Any:
    """Return what a SavedTensor that stands alone holds; None before torch 2.13."""
    return getattr(each, "data", None)


def _slots(raw: Sequence[Any], read: Callable[[], Any]) -> list[Slot | None]:
    """Read the saved tensors of one attribute by unpacking them."""
    outer, _met.data = _met.data, []
    try:
        values = _read_adopting(raw, read, _met.data)
        if values is None or len(values) != len(raw):
            return [Slot(None)] * len(raw)
        noted = iter(_met.data)
        return [
            Slot(next(noted, None) if _is_stand_in(value) else value) if value is not None else None
            for value in values
        ]
    finally:
        _met.data = outer


def _read_adopting(raw: Sequence[Any], read: Callable[[], Any], met: list[Any]) -> Any:
    """Read all; adopt one after the other where torch finds that one of them is stale.

    torch names the versions of the first that is stale: it is the one whose adoption changes that.
    """
    waiting = list(raw)[::-1]
    error = None
    while True:
        met.clear()
        try:
            return read()
        except RuntimeError as failure:
            if FREED_TEXT in str(failure):
                return None
            if versions_in(failure) is None or not waiting:
                raise
            error = failure
        adopted = _adopt(waiting.pop())
        if adopted is not None:
            try:
                read()
            except RuntimeError as failure:
                if versions_in(failure) == versions_in(error):
                    continue
            adopted.is_stale(error)


def _is_stand_in(value: torch.Tensor) -> bool:
    return value.numel() == 0 and value.untyped_storage()._cdata == _stand_in_storage


class _Adopted:
    """Hooks on a saved tensor that had none: they give the tensor, and raise what torch would."""

    def __init__(self) -> None:
        self._text = ""
        self._expected = 0

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Keep the tensor, as it is now: it is taken for one that is not stale."""
        self._expected = read_version(tensor)
        return tensor

    def is_stale(self, error: RuntimeError) -> None:
        """Learn that torch's error was about this one."""
        versions = versions_in(error)
        assert versions is not None
        self._text, self._expected = str(error), versions[1]

    def unpack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Check the version as torch would have."""
        version = read_version(tensor)
        if version != self._expected:
            words = f"is at version {version}; expected version {self._expected} instead"
            raise RuntimeError(
                _VERSION.sub(words, self._text or f"{MODIFIED}: a saved tensor {words}")
            )
        return tensor


def _adopt(each: Any) -> _Adopted | None:
    adopted = _Adopted()
    try:
        each.register_hooks(adopted.pack, readable(adopted.unpack))
    except RuntimeError:  # it has hooks, or nothing to put them on: so it is not the stale one
        return None
    return adopted

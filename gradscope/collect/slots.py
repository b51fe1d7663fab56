"""Reads what a node's saved tensors hold without unpacking it, on any torch.

Since 2.12 torch's ``SavedTensor`` says it itself (``data``, ``unpack_hook``). Before, a saved
tensor is read by unpacking it, while our own unpack hook, which torch then calls, notes what it was
called with and gives a stand-in. (``foreign`` makes the program's hooks do so too; those from
before the watch are kept from running, and nothing is read.) One that is stale cannot be read so;
as torch checks that only where no hooks are, it is given hooks, which do torch's check.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from types import FrameType, FunctionType, MethodType
from typing import Any

import torch
from torch.autograd.graph import Node

from gradscope.program.sites import OWN
from gradscope.program.undisturbed import GCPaused
from gradscope.torch_private import (
    NO_SEQUENCE_NR,
    RAW_SAVED,
    SAVED,
    SAVED_TENSORS_ARE_READABLE,
    DisableTorchDispatch,
    DisableTorchFunction,
    FunctionNode,
    compiles_backward,
    next_sequence_nr,
    read_saved_by_function,
    read_version,
    register_hooks,
)

FREED_TEXT = "Trying to backward through the graph a second time"
REFUSED = "and its base or another view of its base has been modified inplace"
_VERSION = re.compile(r"is at version (\d+); expected version (\d+) instead")
MODIFIED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation"
)


class Slot:
    """A saved tensor as torch 2.12 shows it: ``data`` is None once it was freed.

    Hooks of the program's that went through ``foreign`` are told; others cannot be before 2.12.
    """

    def __init__(self, data: Any, unpack_hook: Any = None) -> None:
        self.data, self.unpack_hook = data, unpack_hook

    def unpack(self) -> Any:
        """Return ``data``: whether it was detached in place since is not told before 2.12."""
        return self.data


_UNREAD = Slot(object(), lambda data: data)
"""Of hooks of the program's, put in before the watch began."""


class _Unpacking(threading.local):
    """What our unpack hook was called with while a saved tensor is read, else None; and how often
    it was called.
    """

    slots: list[Slot] | None = None
    unpacked = 0


class OfTheProgramError(RuntimeError):
    """A hook of the program's would have run."""


_unpacking = _Unpacking()
_watches: list[int] = []
"""For each watch, the lowest sequence number of a node whose hooks went through ``foreign``."""
_stand_in = torch.empty(0, device="cpu")
_stand_ins = {torch.float32: torch.empty(0, dtype=torch.float64, device="cpu")}
_stand_in_storage = _stand_in.untyped_storage()._cdata


def versions_in(error: RuntimeError | str) -> tuple[int, int] | None:
    """Return the versions that the engine's error for a stale tensor names: now, and then."""
    found = _VERSION.search(str(error))
    return None if found is None else (int(found[1]), int(found[2]))


def version_then(error: RuntimeError, tensor: torch.Tensor) -> int | None:
    """Return the version that a saved tensor had, if torch's error says that it is stale.

    Of a view that torch refuses to use it names none: the last change came after.
    """
    if REFUSED in str(error):
        return int(read_version(tensor)) - 1
    found = versions_in(error)
    return None if found is None else found[1]


def readable(
    unpack: Callable[[Any], torch.Tensor], *, foreign: bool = False
) -> Callable[[Any], torch.Tensor]:
    """Return an unpack hook that can be read through; ``foreign`` says that it is the program's."""
    if SAVED_TENSORS_ARE_READABLE or not callable(unpack):
        return unpack

    def unpack_or_note(data: Any) -> torch.Tensor:
        met = _unpacking.slots
        if met is None:
            _unpacking.unpacked += 1
            return unpack(data)
        met.append(Slot(data, unpack if foreign else None))
        return _stand_in

    return unpack_or_note


def foreign(unpack: Callable[[Any], torch.Tensor]) -> Callable[[Any], torch.Tensor]:
    """Return an unpack hook of the program's so that a look does not run it."""
    return readable(unpack, foreign=True)


def part_from_leaf(copy: torch.Tensor) -> None:
    """Have a tensor that torch made on unpacking under hooks forget the leaf that was saved.

    Before torch 2.12 it takes the leaf's hooks with it when Python lets it go. It forgets the leaf
    when its data changes in kind.
    """
    if not SAVED_TENSORS_ARE_READABLE and copy.is_leaf and copy.requires_grad:
        with suppress(RuntimeError):  # not of a dense tensor
            copy.data = _stand_ins.get(copy.dtype, _stand_in)


def begin_watch(under_hooks: bool) -> Callable[[], None]:
    """Take it that from now on the program's unpack hooks went through ``foreign``, unless some
    are in force already; return what ends that.
    """
    _watches.append(NO_SEQUENCE_NR if under_hooks else next_sequence_nr())
    return _watches.clear


def _quiet() -> AbstractContextManager[Any]:
    """Keep modes and subclasses from seeing what torch does to unpack.

    Without a watch it may run hooks of the program's, which must run as they would.
    """
    quiet: AbstractContextManager[Any] = DisableTorchDispatch() if _watches else nullcontext()
    return quiet


def _read(node: Node, read: Callable[[], Any]) -> Any:
    """Return what ``read`` gives of a node.

    Raise OfTheProgramError where that would run a Python function that is not ours. A node that is
    older than the watch may have hooks that did not go through ``foreign``.
    """
    if _watches and node._sequence_nr() >= _watches[0]:
        return read()
    return guarded(read)


def guarded(read: Callable[[], Any]) -> Any:
    """Return what ``read`` gives; raise OfTheProgramError before a Python function that is not ours
    begins: a profile function stands guard.

    Python's collector must not run meanwhile: it calls destructors.
    """
    profile = sys.getprofile()
    if not isinstance(profile, FunctionType | MethodType | None):
        raise OfTheProgramError  # a profiler in C, which Python could not put back
    with GCPaused():
        sys.setprofile(_refuse)
        try:
            return read()
        finally:
            sys.setprofile(profile)


def is_guarded() -> bool:
    """Return whether no Python function may run now that is not ours."""
    return sys.getprofile() is _refuse


def _refuse(frame: FrameType, event: str, arg: object) -> None:
    if event == "call" and not frame.f_code.co_filename.startswith(OWN):
        raise OfTheProgramError


def unpacked(node: Node, attribute: str) -> tuple[Any, int]:
    """Return what torch unpacks, and how often hooks were asked: where they were, ``let_go`` of
    it.

    Raise RuntimeError where hooks of the program's would run.
    """
    if SAVED_TENSORS_ARE_READABLE:
        with DisableTorchDispatch(), DisableTorchFunction():  # no code of a subclass sees it
            return getattr(node, attribute), 0
    before = _unpacking.unpacked
    with _quiet():  # of a subclass, which is not known before, torch makes a copy
        value = _read(node, lambda: getattr(node, attribute))
    return value, _unpacking.unpacked - before


def let_go(value: Any, by_hooks: int) -> None:
    """Let go of what hooks unpacked; what they did not may be the program's own tensor."""
    found = [each for each in (value if type(value) is tuple else (value,)) if each is not None]
    if by_hooks == len(found):
        for each in found:
            part_from_leaf(each)


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
            return _slots(node, raw, lambda: read_saved_by_function(node))
        return _slots(node, raw, lambda: getattr(node, SAVED + name))
    return _slots(node, [raw], lambda: (getattr(node, SAVED + name),))[0]


def each_saved(node: Node, name: str) -> list[Any]:
    """Return the same one by one, without those that are None."""
    found = saved(node, name)
    return [each for each in (found if isinstance(found, tuple | list) else (found,)) if each]


def held_by(each: Any) -> Any:
    """Return what a SavedTensor that stands alone holds; None before torch 2.12."""
    return getattr(each, "data", None)


def _slot(value: torch.Tensor, noted: Iterator[Slot]) -> Slot:
    if value.numel() or value.untyped_storage()._cdata != _stand_in_storage:
        return Slot(value)
    part_from_leaf(value)
    return next(noted, Slot(None))


def _slots(node: Node, raw: Sequence[Any], read: Callable[[], Any]) -> list[Slot | None]:
    """Read the saved tensors of one attribute by unpacking them."""
    outer, _unpacking.slots = _unpacking.slots, []
    try:
        with _quiet(), DisableTorchFunction():
            values = _read_adopting(raw, lambda: _read(node, read), _unpacking.slots)
        if values is None or len(values) != len(raw):
            return [Slot(None)] * len(raw)
        noted = iter(_unpacking.slots)
        return [None if value is None else _slot(value, noted) for value in values]
    except OfTheProgramError:
        return [_UNREAD] * len(raw)
    finally:
        _unpacking.slots = outer


def _read_adopting(raw: Sequence[Any], read: Callable[[], Any], met: list[Slot]) -> Any:
    """Read all; adopt one after the other where torch finds that one of them is stale.

    torch describes the first that is stale: it is the one whose adoption changes that. Where two
    look alike, it may be either, and what is raised is the same.
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
                if str(failure) == str(error) and not adopted.is_described_by(error):
                    continue
            adopted.is_stale(error)


class _Adopted:
    """Hooks on a saved tensor that had none: they give the tensor, and raise what torch would."""

    def __init__(self) -> None:
        self._described = ""
        self._around = f"{MODIFIED}: a saved tensor ", ""
        self._expected = 0

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Keep the tensor, as it is now: it is taken for one that is not stale.

        Whatever is raised here leaves the saved tensor with hooks, and with nothing for them.
        """
        self._expected = read_version(tensor)
        with suppress(RuntimeError):  # a nested tensor has no shape
            self._described = f"[{tensor.type()} {list(tensor.shape)}]"
        return tensor

    def is_described_by(self, error: RuntimeError) -> bool:
        """Return whether torch's error may be about this one."""
        versions = versions_in(error)
        has_its_version = versions is not None and versions[0] == self._expected
        return has_its_version and self._described in str(error)

    def is_stale(self, error: RuntimeError) -> None:
        """Learn that torch's error was about this one."""
        text = str(error)
        found = _VERSION.search(text)
        assert found is not None
        self._around = text[: found.start()], text[found.end() :]
        self._expected = int(found[2])

    def unpack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Check the version as torch would have."""
        version = read_version(tensor)
        if version != self._expected:
            before, after = self._around
            raise RuntimeError(
                f"{before}is at version {version}; expected version {self._expected} instead{after}"
            )
        return tensor


ADOPTED = _Adopted.unpack.__code__
"""In the way of a traceback too."""


def _adopt(each: Any) -> _Adopted | None:
    if compiles_backward():  # the compiler would meet these hooks
        return None
    adopted = _Adopted()
    try:
        register_hooks(each, adopted.pack, readable(adopted.unpack))
    except RuntimeError:  # it has hooks, or nothing to put them on: so it is not the stale one
        return None
    return adopted

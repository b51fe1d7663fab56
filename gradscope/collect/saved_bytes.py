"""Counts saved tensors and their bytes from saving to release, and finds the storages that only the
graph owns, from the reference counts of torch and Python.
"""

from __future__ import annotations

import sys
import weakref
from array import array
from collections.abc import Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any

import torch

from gradscope.collect.calls import COUNTS
from gradscope.collect.marks import UNTIED, Packed
from gradscope.collect.notes import Notes, raised_by_program
from gradscope.collect.observers import Observer, Observers
from gradscope.torch_private import DisableTorchFunction, storage_use_count

# Saved tensors that may be asked for their node between two backward calls, to tell a result from
# an input. Each node that Python has seen takes stack when it is destroyed, and a forward pass of
# any length may come before the next call.
LOOKS = 2_000

# Nodes behind which a Function saved something, kept in case it changed a view in place; the
# older half is forgotten first. Such a CopySlices is asked at the next call, or a line later.
_MOST_HIDDEN = 1_024

_counts_of = attrgetter(*COUNTS)


class HiddenSaves:
    """What Functions saved last, by the number of the last node that there was then.

    A Function is asked what it saved, but for one that changed a view in place: CopySlices hides
    it. It saves when torch has built CopySlices, and after that a node for the view.
    """

    def __init__(self) -> None:
        self._saved: dict[int, list[weakref.ref[Packed]]] = {}

    def add(self, number: int, packed: Packed) -> None:
        """Note one saved tensor; of too many, forget the oldest."""
        self._saved.setdefault(number, []).append(weakref.ref(packed))
        if len(self._saved) > _MOST_HIDDEN:
            self._saved = dict([*self._saved.items()][_MOST_HIDDEN // 2 :])

    def last(self, number: int) -> Packed | None:
        """Return what was saved last since this node was built."""
        return self._saved[number][-1]() if number in self._saved else None

    def of_slices(self, number: int) -> list[weakref.ref[Packed]]:
        """Return what a Function saved that the CopySlices of this number hides."""
        return [*self._saved.pop(number, ()), *self._saved.pop(number + 1, ())]


class Ledger:
    """The account of a watch: saved tensors by node, and bytes once per storage.

    Parameters are not counted: they cost the graph no memory.
    """

    def __init__(self, observers: Observers, notes: Notes) -> None:
        self.observers = observers
        self.notes = notes
        self.pending: dict[int, list[weakref.ref[Packed]]] = {}
        """Saved tensors of nodes that no look at a graph has met yet, by the node's number."""
        self.hidden = HiddenSaves()
        self.storages: dict[int, int] = {}
        self.saved_tensors = self.saved_bytes = 0
        self.freed_tensors = self.freed_bytes = self.returned_bytes = 0
        self.dropped_tensors = self.dropped_bytes = 0
        self.estimated_calls = 0
        self.live_tensors = self.live_bytes = self.peak_bytes = self.highest_bytes = 0
        self.look_at = sys.maxsize
        """With more saved tensors than this, observers are told that it has ``grown``."""

    def counts(self) -> Sequence[int]:
        """The totals so far, to be compared with later ones."""
        return _counts_of(self)

    def count(self, packed: Packed, tensor: torch.Tensor) -> None:
        """Count the bytes of a saved activation, once per storage.

        A tensor that is not a view starts its storage and fills it; asking for the storage itself
        costs ten times as much.
        """
        try:
            if tensor._is_view():
                storage = tensor.untyped_storage()
                key, nbytes = storage.data_ptr(), storage.nbytes()
            else:
                key, nbytes = tensor.data_ptr(), tensor.nbytes
        except (NotImplementedError, RuntimeError):  # sparse and opaque tensors have no storage
            return
        packed.storage = key
        packed.nbytes = nbytes
        storages = self.storages
        if key in storages:
            storages[key] += 1
        elif key:
            storages[key] = 1
            self.saved_bytes += nbytes
            self.live_bytes = live = self.live_bytes + nbytes
            if live > self.peak_bytes:
                self.peak_bytes = live
            if self.saved_tensors > self.look_at:
                frame = sys._getframe(1).f_back
                if frame is not None:
                    self.observers.tell(Observer.grown, frame)

    def let_go(self, packed: Packed) -> None:
        """Book that the graph let go of a saved tensor.

        It was freed by the backward call in progress, or else dropped with its graph.
        """
        try:
            self._book(packed)
        except Exception as failure:  # a destructor runs: Python would print this into the program
            if raised_by_program(failure):  # see notes.py
                raise
            self.notes.failed("booking a saved tensor failed in gradscope", failure)

    def _book(self, packed: Packed) -> None:
        mark = packed.mark
        call = None if mark is None or not mark.call or not mark.call.open else mark.call
        self.live_tensors -= 1
        nbytes = 0
        returned = False
        key = packed.storage
        if key:
            storages = self.storages
            left = storages.get(key, 1) - 1
            if left:
                storages[key] = left
            else:
                storages.pop(key, None)
                nbytes = packed.nbytes
                self.live_bytes -= nbytes
                returned = (
                    call is not None
                    and call.exact
                    and packed.tensor is not None
                    and is_alone(packed)
                )
        if mark is not None and call is not None:
            mark.freed_by = call
            self.freed_tensors += 1
            self.freed_bytes += nbytes
            call.freed_tensors += 1
            call.freed_bytes += nbytes
            if returned:
                self.returned_bytes += nbytes
                call.returned_bytes += nbytes
        else:
            self.dropped_tensors += 1
            self.dropped_bytes += nbytes
            self.observers.tell(Observer.dropped, packed, nbytes)
            if mark is None and packed.sequence_nr != UNTIED:
                self.pending.pop(packed.sequence_nr, None)


Entry = tuple[str, Any]
"""A saved tensor's name, with the tensor or what our pack hook returned."""


class Storages:
    """The storages of what a graph saved, by number from 1: their bytes, and which of them nothing
    but the graph holds.

    Of each tensor, and of each base of one, it counts how often others than the nodes hold it.
    """

    alone = shared = storage = 0
    """What Python counts for a tensor that one entry holds, and more if C++ holds it; and for a
    storage that one list holds. A variable may count or not, as Python compiles its use.
    """
    are_told = False

    def __init__(self) -> None:
        self.nbytes = array("q", [0])
        self._numbers: dict[int, int] = {}
        self._used: dict[int, int | None] = {0: None}
        """How often each is used besides the tensors that were met, None if that is not told; those
        that a node has for itself are left out.
        """
        self._tensors: dict[int, list[Any]] = {}
        """Of each tensor, by id, what ``read`` returns; how often others hold it, in Python and in
        torch; and the tensor, so that no id is another's meanwhile.
        """

    def read(self, entries: Sequence[Entry], at: int) -> Sequence[Any]:
        """Return of the tensor that is one of the entries of a node the number of its storage, the
        address of that, and whether it is a view; the number is 0 if it is not a tensor.

        Nothing else of ours may hold any of these tensors.
        """
        tensor = entries[at][1]
        is_ours = isinstance(tensor, Packed)
        if is_ours:
            tensor = tensor.tensor
        counted = sys.getrefcount(tensor)
        known = self._tensors.get(id(tensor))
        if known is None:
            if not isinstance(tensor, torch.Tensor):
                return 0, 0, False
            if not is_ours:
                if self.are_told and (own := self._own(tensor, counted)) is not None:
                    return own
                counted -= _times(tensor, entries)
            known = self._meet(tensor, counted, entries)
        known[3 if is_ours else 4] -= 1
        return known

    def _own(self, tensor: Any, counted: int) -> Sequence[Any] | None:
        """Return the same of a tensor whose storage nothing but one node has, and so no other will
        be found to have it.
        """
        if counted != self.alone + self.shared or tensor._use_count() != 2 or tensor._is_view():
            return None
        try:
            stored = [tensor.untyped_storage()]
        except (NotImplementedError, RuntimeError):  # sparse and opaque tensors
            return None
        key = stored[0]._cdata
        if sys.getrefcount(stored[0]) > self.storage or storage_use_count(key) > 2:  # by `stored`
            return None
        self.nbytes.append(stored[0].nbytes())
        return len(self.nbytes) - 1, key, False

    def _meet(self, tensor: Any, counted: int, entries: Sequence[Entry]) -> list[Any]:
        by_torch = tensor._use_count() - 1 if self.are_told else 0  # its Python object
        by_python = counted - self.alone + 1 - (self.shared if by_torch else 0)
        is_view, base = tensor._is_view(), None
        try:
            stored = [tensor.untyped_storage()]
        except (NotImplementedError, RuntimeError):
            key, nbytes, used = id(tensor), 0, None
        else:
            key, nbytes, base = stored[0]._cdata, stored[0].nbytes(), tensor._base
            is_named = sys.getrefcount(stored[0]) > self.storage
            used = sys.maxsize if is_named else storage_use_count(key) - 1
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.nbytes)
            self.nbytes.append(nbytes)
            self._used[number] = used if self.are_told else None
        known = self._tensors[id(tensor)] = [number, key, is_view, by_python, by_torch, tensor]
        if base is not None:
            of_base = self._tensors.get(id(base))
            if of_base is None:
                counted = sys.getrefcount(base) - _times(base, entries)
                of_base = self._meet(base, counted, entries)
            of_base[4] -= 1
        return known

    def are_alone(self) -> list[bool | None]:
        """Return of each storage whether the tensors, and bases of views, that the graph has of it
        are all that use it; None where that is not told.
        """
        for number, _, _, by_python, by_torch, _ in self._tensors.values():
            if (left := self._used[number]) is not None:
                is_held = by_python > 0 or by_torch > 0
                # Where torch holds it less often than its nodes do, older torch made it when it
                # was read.
                self._used[number] = sys.maxsize if is_held else left - 1 - (by_torch < 0)
        used = map(self._used.get, range(len(self.nbytes)), repeat(0))
        return [None if left is None else left <= 0 for left in used]

    @classmethod
    def calibrate(cls) -> None:
        """Find out what is counted."""
        held = [torch.empty(1, device="cpu")]
        stored = [held[0].untyped_storage()]
        cls.storage = sys.getrefcount(stored[0])
        are_told = hasattr(held[0], "_use_count") and storage_use_count(stored[0]._cdata) == 2
        before = sys.getrefcount(held[0])
        view = held[0].view(1)
        cls.shared = sys.getrefcount(held[0]) - before
        del view, stored
        storages = cls()
        cls.alone = storages.read([("", held.pop())], 0)[3]
        cls.are_told = are_told


def _times(tensor: Any, entries: Sequence[Entry]) -> int:
    """Return how often the entries of a node hold a tensor."""
    times = 0
    for _, data in entries:
        times += data is tensor
    return times


Storages.calibrate()


def is_alone(packed: Packed) -> bool:
    """Return whether nothing but this holds the memory of a saved tensor."""
    storages = Storages()
    with DisableTorchFunction():
        storages.read([("", packed)], 0)
    return storages.are_alone()[1] is True

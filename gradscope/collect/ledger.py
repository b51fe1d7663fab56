"""Counts saved tensors and their bytes from the moment they are saved until the graph lets go of
them, and says of which storages a graph is the only owner, by the counts of torch and Python.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Sequence
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
_MOST_LOOSE = 1_024

_counts_of = attrgetter(*COUNTS)


class Loose:
    """What Functions saved last, by the number of the last node that there was then.

    A Function is asked what it saved, but for one that changed a view in place: CopySlices hides
    it. It saves when torch has built CopySlices, and after that a node for the view.
    """

    def __init__(self) -> None:
        self._saved: dict[int, list[weakref.ref[Packed]]] = {}

    def add(self, number: int, packed: Packed) -> None:
        """Note one saved tensor; of too many, forget the oldest."""
        self._saved.setdefault(number, []).append(weakref.ref(packed))
        if len(self._saved) > _MOST_LOOSE:
            self._saved = dict([*self._saved.items()][_MOST_LOOSE // 2 :])

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
        self.loose = Loose()
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

        A tensor that is no view starts its storage and fills it; asking for the storage itself
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
        token = packed.token
        call = None if token is None or not token.call or not token.call.open else token.call
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
                    and {alone for *_, alone in memory_of([[("", packed)]]).values()} == {True}
                )
        if token is not None and call is not None:
            token.freed_by = call
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
            if token is None and packed.sequence_nr != UNTIED:
                self.pending.pop(packed.sequence_nr, None)


Entry = tuple[str, Any]
"""A saved tensor's name, with the tensor or what our pack hook returned."""


class _Counts:
    """What Python counts for a tensor that one list holds, and more if C++ holds it (``shared``);
    and for a storage that one list holds. A variable may count or not, as Python compiles its use.
    """

    def __init__(self) -> None:
        held = [torch.empty(1, device="cpu")]
        self.alone = sys.getrefcount(held[0])
        view = held[0].view(1)
        self.shared = sys.getrefcount(held[0]) - self.alone
        del view
        stored = [held[0].untyped_storage()]
        self.storage = sys.getrefcount(stored[0])
        self.are_told = hasattr(held[0], "_use_count") and storage_use_count(stored[0]._cdata) == 2


_counts = _Counts()


Memory = tuple[int, int, bool | None]
"""The address and the bytes of a storage, and whether nothing but the graph holds it; None where
torch does not tell.
"""


class _Owned:
    """A tensor of the graph's, or the base of one, in a list of its own: how often it is held by
    Python and by torch, and how often that is the graph: in Python, in C++, by its views.
    """

    __slots__ = ("counted", "held", "in_python", "in_torch", "used", "views")

    def __init__(self, held: list[Any]) -> None:
        self.held = held
        self.used = held[0]._use_count() - 1 if _counts.are_told else 0  # its Python object
        self.counted = sys.getrefcount(held[0]) - _counts.alone
        self.in_python = self.in_torch = self.views = 0


def memory_of(found: Iterable[list[Entry]]) -> dict[int, Memory]:
    """Return the memory of each tensor, by its id; those without a storage are left out.

    ``found`` is what each node of the graph holds, as ``nodes.held`` returns it; nothing else of
    ours may hold any of it.
    """
    storages: dict[int, tuple[int, int, dict[int, _Owned]]] = {}
    with DisableTorchFunction():
        for saved in found:
            for _, data in saved:
                is_ours = isinstance(data, Packed)
                held = [data.tensor if is_ours else data]
                data = None  # it would count as an owner
                if not isinstance(held[0], torch.Tensor):
                    continue
                try:
                    stored = [held[0].untyped_storage()]
                    key, nbytes = stored[0]._cdata, stored[0].nbytes()
                except (NotImplementedError, RuntimeError):  # sparse and opaque tensors
                    continue
                if key not in storages:
                    named = sys.getrefcount(stored[0]) > _counts.storage
                    used = sys.maxsize if named else storage_use_count(key) - 1  # by `stored`
                    storages[key] = nbytes, used, {}
                owned = _owned_in(storages[key][2], held)
                owned.in_python += 1
                owned.in_torch += not is_ours
    return {
        i: (key, nbytes, alone)
        for key, (nbytes, used, of_storage) in storages.items()
        for alone in (_are_all(of_storage, used),)
        for i in of_storage
    }


def _owned_in(of_storage: dict[int, _Owned], held: list[Any]) -> _Owned:
    owned = of_storage.get(id(held[0]))
    if owned is None:
        owned = of_storage[id(held[0])] = _Owned(held)
        base = [held[0]._base if held[0]._is_view() else None]
        if base[0] is not None:
            _owned_in(of_storage, base).views += 1
    return owned


def _are_all(of_storage: dict[int, _Owned], used: int) -> bool | None:
    """Return whether the tensors, and bases of views, that the graph has of a storage are all that
    use it; None where torch does not tell.
    """
    if not _counts.are_told:
        return None
    for owned in of_storage.values():
        own = owned.in_python + (_counts.shared if owned.used else 0)
        if owned.counted > own or owned.used > owned.in_torch + owned.views:
            return False
        used -= 1 + (owned.used < owned.in_torch)  # then older torch made it when it was read
    return used <= 0

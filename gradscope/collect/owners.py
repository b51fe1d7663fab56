"""Says of which storages a graph is the only owner, by the counts of owners of torch and Python."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch

from gradscope.collect.marks import Packed
from gradscope.torch_private import DisableTorchFunction, storage_use_count

Entry = tuple[str, Any]
"""A saved tensor's name, with the tensor or what our pack hook returned."""


class _Counts:
    """What Python counts for a tensor that one list holds, and more if C++ holds it (``shared``);
    and for the storage that a variable holds.
    """

    def __init__(self) -> None:
        held = [torch.empty(1, device="cpu")]
        self.alone = sys.getrefcount(held[0])
        view = held[0].view(1)
        self.shared = sys.getrefcount(held[0]) - self.alone
        del view
        storage = held[0].untyped_storage()
        self.storage = sys.getrefcount(storage)
        self.are_told = storage_use_count(storage._cdata) == 2


_counts = _Counts()


def _are_more(counted: int, in_torch: int, own: int, own_in_torch: int) -> bool:
    """Return whether a tensor has more owners than the graph: of what Python has ``counted`` the
    graph's share is ``own``, of those in torch ``own_in_torch``.
    """
    in_python = counted - _counts.alone - own - (_counts.shared if in_torch else 0)
    return in_python > 0 or in_torch > own_in_torch


class _Owned:
    """A tensor of the graph's; how often the graph holds it in Python, in C++, by its views."""

    __slots__ = ("held", "in_python", "in_torch", "views")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.held = [tensor]
        self.in_python = self.in_torch = self.views = 0

    @property
    def is_copy(self) -> bool:
        """Whether older torch made this when it was read, of a tensor that only the graph has."""
        held: Any = self.held[0]
        return bool(held._use_count() <= self.in_torch)

    @property
    def has_others(self) -> bool:
        """Whether something else than the graph holds the tensor."""
        counted = sys.getrefcount(self.held[0])
        held: Any = self.held[0]
        in_torch = held._use_count() - 1  # its Python object
        return _are_more(counted, in_torch, self.in_python, self.in_torch + self.views)


def owned_alone(found: Iterable[list[Entry]]) -> dict[int, bool]:
    """Return by address of each storage whether nothing but the graph holds it.

    ``found`` is what each node of the graph holds, as ``nodes.held`` returns it; nothing else of
    ours may hold any of it. Tensors without a storage of their own are left out.
    """
    storages: dict[int, list[Entry]] = {}
    with DisableTorchFunction():
        for saved in found:
            for entry in saved:
                key = _storage_of(entry)
                if key:
                    storages.setdefault(key, []).append(entry)
        known = {key: _alone(key, entries) for key, entries in storages.items()}
    return {key: alone for key, alone in known.items() if alone is not None}


def _tensor_of(entry: Entry) -> Any:
    data = entry[1]
    packed = type(data) is not torch.Tensor and isinstance(data, Packed)
    return data.tensor if packed else data


def _storage_of(entry: Entry) -> int:
    tensor = _tensor_of(entry)
    if not isinstance(tensor, torch.Tensor):
        return 0
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # sparse and opaque tensors
        return 0


def _alone(key: int, entries: list[Entry]) -> bool | None:
    """Return whether all owners of a storage are the graph's: tensors, and the bases of views.

    None where torch does not tell.
    """
    if not _counts.are_told:
        return None
    try:
        if len(entries) == 1 and not _tensor_of(entries[0])._is_view():
            return _is_only_owner(key, entries[0])
        return not _has_others(_owned_by(entries))
    except (AttributeError, NotImplementedError, RuntimeError):
        return None


def _is_only_owner(key: int, entry: Entry) -> bool:
    """Return the same of a storage that one tensor has, which is no view: the common case."""
    packed = isinstance(entry[1], Packed)
    in_graph = not packed  # a Packed is Python's, what torch saves by itself is C++'s
    counted = sys.getrefcount(entry[1].tensor) if packed else sys.getrefcount(entry[1])
    in_torch = _tensor_of(entry)._use_count() - 1
    if _are_more(counted, in_torch, 0, in_graph):
        return False
    storage = _tensor_of(entry).untyped_storage()
    owners = 2 + (in_torch < in_graph)  # the tensor and `storage`; the one that older torch copied
    return storage_use_count(key) <= owners and sys.getrefcount(storage) <= _counts.storage


def _owned_by(entries: list[Entry]) -> dict[int, _Owned]:
    of_storage: dict[int, _Owned] = {}
    for entry in entries:
        tensor = _tensor_of(entry)
        owned = of_storage.get(id(tensor))
        if owned is None:
            owned = of_storage[id(tensor)] = _Owned(tensor)
        owned.in_python += 1
        owned.in_torch += not isinstance(entry[1], Packed)
        del tensor, owned  # they would count as owners
    return of_storage


def _has_others(of_storage: dict[int, _Owned]) -> bool:
    for owned in list(of_storage.values()):
        base = owned.held[0]._base if owned.held[0]._is_view() else None
        if base is not None:
            of_storage.setdefault(id(base), _Owned(base)).views += 1
        del base  # it would count as an owner
    first = next(iter(of_storage.values()))
    storage = first.held[0].untyped_storage()
    copied = sum(owned.is_copy for owned in of_storage.values())
    if storage_use_count(storage._cdata) > len(of_storage) + copied + 1:  # 1 is `storage`
        return True
    if sys.getrefcount(storage) > _counts.storage:
        return True
    return any(owned.has_others for owned in of_storage.values())

"""Says of which storages a graph is the only owner, by the counts of owners of torch and Python."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch

from gradscope.collect.marks import Packed
from gradscope.program.tensors import storage_of
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
        own = _counts.alone + self.in_python + (_counts.shared if in_torch else 0)
        return counted > own or in_torch > self.in_torch + self.views


def owned_alone(found: Iterable[list[Entry]]) -> dict[int, bool]:
    """Return by address of each storage whether nothing but the graph holds it.

    ``found`` is what each node of the graph holds, as ``nodes.held`` returns it; nothing else of
    ours may hold any of it. Tensors without a storage of their own are left out.
    """
    storages: dict[int, list[Entry]] = {}
    with DisableTorchFunction():
        for saved in found:
            for entry in saved:
                tensor = _tensor_of(entry)
                key = storage_of(tensor) if isinstance(tensor, torch.Tensor) else 0
                del tensor  # it would count as an owner
                if key:
                    storages.setdefault(key, []).append(entry)
        known = {key: _alone(entries) for key, entries in storages.items()}
    return {key: alone for key, alone in known.items() if alone is not None}


def _tensor_of(entry: Entry) -> Any:
    data = entry[1]
    packed = type(data) is not torch.Tensor and isinstance(data, Packed)
    return data.tensor if packed else data


def _alone(entries: list[Entry]) -> bool | None:
    """Return whether all owners of a storage are the graph's: tensors, and the bases of views.

    None where torch does not tell.
    """
    if not _counts.are_told:
        return None
    try:
        return not _has_others(_owned_by(entries))
    except (AttributeError, NotImplementedError, RuntimeError):
        return None


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

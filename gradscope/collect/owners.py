"""Says of which storages a graph is the only owner, by the counts of owners of torch and Python."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch

from gradscope.collect.marks import Packed
from gradscope.torch_private import DisableTorchFunction, storage_use_count


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
        in_python = sys.getrefcount(self.held[0]) - _counts.alone - self.in_python
        held: Any = self.held[0]
        in_torch = held._use_count() - 1  # its Python object
        if in_torch:
            in_python -= _counts.shared
        del held
        return in_python > 0 or in_torch > self.in_torch + self.views


def owned_alone(found: Iterable[list[tuple[str, Any]]]) -> dict[int, bool]:
    """Return by address of each storage whether nothing but the graph holds it.

    ``found`` is what each node of the graph holds, as ``nodes.held`` returns it; nothing else of
    ours may hold any of it. Tensors without a storage of their own are left out.
    """
    storages: dict[int, dict[int, _Owned]] = {}
    with DisableTorchFunction():
        for saved in found:
            for i in range(len(saved)):
                packed = type(saved[i][1]) is not torch.Tensor and isinstance(saved[i][1], Packed)
                _add(saved[i][1].tensor if packed else saved[i][1], packed, storages)
        known = {key: _alone(owned) for key, owned in storages.items()}
    return {key: alone for key, alone in known.items() if alone is not None}


def _add(tensor: Any, packed: bool, storages: dict[int, dict[int, _Owned]]) -> None:
    if not isinstance(tensor, torch.Tensor):
        return
    try:
        key = tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # sparse and opaque tensors
        return
    of_storage = storages.setdefault(key, {})
    owned = of_storage.get(id(tensor))
    if owned is None:
        owned = of_storage[id(tensor)] = _Owned(tensor)
    owned.in_python += 1
    owned.in_torch += not packed


def _alone(of_storage: dict[int, _Owned]) -> bool | None:
    """Return whether all owners of a storage are the graph's: tensors, and the bases of views.

    None where torch does not tell.
    """
    try:
        return not _has_others(of_storage) if _counts.are_told else None
    except (AttributeError, NotImplementedError, RuntimeError):
        return None


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

"""Notices that saved tensors were changed in place: by their versions, or by their memory."""

from __future__ import annotations

import ctypes
import math
import re
import weakref
import zlib
from collections.abc import Iterable
from itertools import chain, islice, product
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from gradscope.code.through_data import data_lines
from gradscope.collect.marks import Packed
from gradscope.collect.thread_numbers import this_thread
from gradscope.detect.foresight.objects import MISSING, Objects
from gradscope.program.tensors import PLAIN, storage_of
from gradscope.torch_private import DisableTorchFunction

_MOST_KEPT = 8_192
_MOST_READ = 64  # saved tensors before one line
_MOST_PIECES = 256
_PAGE = 4_096
_MOST_PAGES = 256  # of one piece of memory that are read; of more than that, as many spread evenly
_VARIABLE_INDEX = re.compile(r"\[([^\W\d]\w*)\]")


class Versions:
    """The newest saved tensors of the live graphs, each until its version is seen to change."""

    def __init__(self) -> None:
        self._recent: list[weakref.ref[Packed]] = []
        self._by_storage: dict[int, list[weakref.ref[Packed]]] = {}
        self._sorted = 0  # how many of the recent ones are in there

    def add(self, packed: Packed) -> None:
        """Remember one more."""
        if len(self._recent) >= _MOST_KEPT:
            del self._recent[: _MOST_KEPT // 2]
            self._forget_storages()
        self._recent.append(weakref.ref(packed))

    def changed(self, most: int) -> list[Packed]:
        """Return those of the ``most`` newest that this thread saved and that were changed since
        the last look.
        """
        recent = self._recent
        newest = recent[-most:]
        with DisableTorchFunction():  # at every line, so each step here counts
            alive = [packed for reference in newest if (packed := reference()) is not None]
            found = [
                packed
                for packed in alive
                if (tensor := packed.tensor) is not None and tensor._version != packed.version
            ]
        dead = len(newest) - len(alive)
        del alive
        if found or dead > most // 2 or dead == len(recent):
            known = {id(packed) for packed in found}
            recent[:] = [r for r in recent if (p := r()) is not None and id(p) not in known]
            self._forget_storages()
        thread = this_thread.number
        return [packed for packed in found if packed.thread == thread]

    def of_storage(self, storage: int) -> list[Packed]:
        """Return those that this thread saved and whose tensor has this memory."""
        for reference in self._recent[self._sorted :]:
            packed = reference()
            if packed is not None and packed.tensor is not None:
                self._by_storage.setdefault(storage_of(packed.tensor), []).append(reference)
        self._sorted = len(self._recent)
        alive = (reference() for reference in self._by_storage.get(storage, ()))
        thread = this_thread.number
        return [
            packed
            for packed in alive
            if packed is not None
            and packed.thread == thread
            and packed.tensor is not None
            and storage_of(packed.tensor) == storage
        ]

    def newest(self, most: int) -> list[Packed]:
        """Return those that this thread saved last."""
        thread, found = this_thread.number, []
        for reference in reversed(self._recent):
            packed = reference()
            if packed is not None and packed.thread == thread:
                found.append(packed)
                if len(found) == most:
                    break
        return found

    def _forget_storages(self) -> None:
        self._by_storage.clear()
        self._sorted = 0


class MemoryBefore:
    """Checksums of saved tensors before a statement runs; it holds none of the tensors."""

    def __init__(self, code: CodeType, packs: list[Packed]) -> None:
        self.code = code
        self._packs = [weakref.ref(packed) for packed in packs]
        self._before = checksums(packs)

    def changed(self) -> list[Packed]:
        """Return those that hold something else since the last look, at the same version."""
        packs = [reference() for reference in self._packs]
        before, now = self._before, checksums(packs)
        self._before = now
        return [
            packed
            for packed, old, new in zip(packs, before, now, strict=True)
            if packed is not None and old is not None and new is not None and old != new
        ]


def memory_before(frame: FrameType, versions: Versions) -> MemoryBefore | None:
    """Return what is saved of the tensors that the next line names with ``.data``, None if nothing.

    Where a line writes to a tensor that is not known in advance, take what was saved last.
    """
    lines = data_lines(frame.f_code.co_filename)
    line = lines.get(frame.f_lineno) if lines else None
    if line is None:
        return None
    objects = Objects(frame)
    found = [_find(name, objects) for name in line.names]
    if line.writes and any(value is MISSING for value in found):
        packs = versions.newest(_MOST_READ)
    else:
        values = [value if type(value) in (list, tuple) else (value,) for value in found]
        some = islice(chain.from_iterable(values), _MOST_READ)
        storages = {storage_of(each) for each in some if issubclass(type(each), torch.Tensor)}
        packs = [packed for storage in storages - {0} for packed in versions.of_storage(storage)]
    return MemoryBefore(frame.f_code, packs[:_MOST_READ]) if packs else None


def _find(path: str, objects: Objects) -> Any:
    """What the path stands for; an index that is a variable counts as its value."""

    def value_of(match: re.Match[str]) -> str:
        value = objects.find(match[1])
        return f"[{value!r}]" if type(value) in (int, str) else match[0]

    return objects.find(_VARIABLE_INDEX.sub(value_of, path))


class _Memory(NamedTuple):
    """Where a tensor's elements lie: one piece, or several of the same length."""

    address: int
    nbytes: int
    offsets: tuple[int, ...]


def checksums(packs: Iterable[Packed | None]) -> list[int | None]:
    """Return a checksum of each saved tensor's elements, or of samples of a very large one.

    No operation of torch's runs. None stands for a tensor on another device than the CPU, in an
    unusual layout, or changed where torch has seen it.
    """
    known: dict[_Memory | None, int | None] = {None: None}
    found = []
    for packed in packs:
        memory = _memory_of(packed) if packed is not None else None
        if memory is not None and memory not in known:
            known[memory] = checksum(memory)
        found.append(known[memory])
    return found


def _memory_of(packed: Packed) -> _Memory | None:
    tensor = packed.tensor
    if tensor is None or type(tensor) not in PLAIN:
        return None
    with DisableTorchFunction():
        if (
            tensor.device.type != "cpu"
            or tensor.layout != torch.strided
            or tensor.is_nested
            or tensor._version != packed.version
        ):
            return None
        size = tensor.element_size()
        dimensions = sorted(
            (stride, n) for n, stride in zip(tensor.shape, tensor.stride(), strict=True)
        )
        last = tensor.storage_offset() + sum((n - 1) * stride for stride, n in dimensions)
        if not tensor.numel() or (last + 1) * size > tensor.untyped_storage().nbytes():
            return None
        try:
            address = tensor.data_ptr()
        except RuntimeError:  # a tensor that stands for another
            return None
    length = 1  # of the elements that lie one after the other
    outer = []
    for stride, n in dimensions:
        if stride == length:
            length *= n
        elif n > 1 and stride:
            outer.append(range(0, stride * n, stride))
    if math.prod(map(len, outer)) > _MOST_PIECES:
        return None
    return _Memory(address, length * size, tuple(sum(each) * size for each in product(*outer)))


def checksum(memory: _Memory) -> int:
    """Return a checksum of some memory."""
    found = 0
    for offset in memory.offsets:
        start, nbytes = memory.address + offset, memory.nbytes
        if nbytes <= _PAGE * _MOST_PAGES:
            found = zlib.crc32((ctypes.c_char * nbytes).from_address(start), found)
            continue
        for i in range(_MOST_PAGES):
            page = start + (nbytes - _PAGE) * i // (_MOST_PAGES - 1)
            found = zlib.crc32((ctypes.c_char * _PAGE).from_address(page), found)
    return found

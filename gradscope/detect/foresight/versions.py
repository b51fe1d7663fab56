"""Notices that saved tensors were changed in place, by comparing their versions."""

from __future__ import annotations

import weakref

from gradscope.collect.marks import Packed
from gradscope.collect.thread_numbers import this_thread
from gradscope.program.tensors import storage_of
from gradscope.torch_private import DisableTorchFunction

_MOST_KEPT = 8_192


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

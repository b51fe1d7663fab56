"""Recognizes graphs by a bare walk that reads what their nodes saved, with no hooks and no
marks.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.graph import Node

from gradscope.collect import slots
from gradscope.collect.generations import Generations
from gradscope.collect.marks import Packed, Token
from gradscope.collect.nodes import Kind, kind_of, stale_by_engine
from gradscope.collect.shapes import Repeat, Shape
from gradscope.program.sites import Place
from gradscope.program.tensors import PLAIN
from gradscope.torch_private import SAVED, SAVED_TENSORS_ARE_READABLE

_MOST_NODES = 50_000  # of one graph
_MOST_KINDS = 5_000
_MOST_KNOWN = 200

_FUNCTION = ("",)
"""Stands for the saved tensors of a Python Function, which are read in another way."""

_Key = tuple[Place | None, int, tuple[type, ...]]
"""By what a graph is recognized: the call's place, the bytes read, and the kinds of the nodes."""


class Recognizer:
    """Knows the shapes of graphs that a bare walk can tell apart."""

    def __init__(self, generations: Generations, room_for: Callable[[int], int]) -> None:
        self._generations = generations
        self._room_for = room_for
        self._readable: dict[type, tuple[str, ...]] = {}
        self._known: dict[_Key, Shape] = {}
        self._by_kinds: dict[tuple[type, ...], Shape] = {}

    def look(self, roots: Sequence[Node], place: Place | None) -> Repeat | None:
        """Recognize a graph that was built since the last call and has no stale tensor."""
        read = self._read(roots)
        if read is None:
            return None
        kinds, numbers, nbytes = read
        shape = self._known.get((place, nbytes, kinds))
        return None if shape is None else Repeat(shape, numbers)

    def learn(
        self, shape: Shape, nodes: Sequence[Node], tokens: Sequence[Token], roots: Sequence[Node]
    ) -> None:
        """Find out whether a bare walk sees all that the hooks have seen of graphs of this
        shape.
        """
        shape.recognizable = False
        if len(nodes) > _MOST_NODES:
            return
        readable = {}
        for node, token in zip(nodes, tokens, strict=True):
            kind = kind_of(type(node))
            tensors = _count(node, kind)
            if tensors is None or tensors < len(token.packs):
                return
            names = tuple(SAVED + name for name in kind.names)
            readable[type(node)] = _FUNCTION if kind.is_function else names
        if len(self._known) >= _MOST_KNOWN or len(self._readable) >= _MOST_KINDS:
            self._known.clear()
            self._by_kinds.clear()
            self._readable.clear()
        self._readable.update(readable)
        read = self._read(roots)
        if read is not None and len(read[0]) == len(nodes):
            kinds, _, nbytes = read
            shape.recognizable = True
            shape.nodes = sum(not kind_of(kind).is_leaf for kind in kinds)
            self._known[shape.signature[0], nbytes, kinds] = shape
            self._by_kinds[kinds] = shape

    def knows(self, kinds: tuple[type, ...]) -> bool:
        """Return whether a graph with nodes of these kinds was seen to be readable without
        hooks.
        """
        return kinds in self._by_kinds

    def places_of(self, kinds: tuple[type, ...], place: Place | None) -> tuple[Place | None, ...]:
        """Return where the nodes of a known graph, which a call at ``place`` has met, were made."""
        shape = self._by_kinds.get(kinds)
        return () if shape is None or place not in (None, shape.signature[0]) else shape.places

    def _read(self, roots: Sequence[Node]) -> tuple[tuple[type, ...], array[int], int] | None:
        """Walk a graph as the full look does: kinds and sequence numbers of its nodes, and bytes.

        None if a node that saves something was built before the last call ended, or if one cannot
        be read. Reading what was saved without hooks runs torch's own check of its version, and no
        code of the program's. This runs at every call of a steady loop, so it walks by itself.
        """
        readable, newest = self._readable, self._generations.newest
        seen: set[Node] = set()
        kinds: list[type] = []
        numbers = array("Q")
        nbytes = 0
        most = min(_MOST_NODES, self._room_for(0))
        stack = list(roots)[::-1]
        try:
            while stack:
                node = stack.pop()
                if node in seen:
                    continue
                seen.add(node)
                kind = type(node)
                names = readable.get(kind)
                if names is None or len(kinds) >= most:
                    return None
                kinds.append(kind)
                if not names:  # it saves nothing: no matter when it was built and who runs it
                    numbers.append(0)
                elif (number := node._sequence_nr()) < newest:
                    return None
                else:
                    numbers.append(number)
                if names is _FUNCTION:
                    nbytes += sum(tensor.nbytes for tensor in _saved_by_function(node))
                else:
                    for name in names:
                        if SAVED_TENSORS_ARE_READABLE:
                            value, by_hooks = getattr(node, name), 0
                        else:
                            value, by_hooks = slots.unpacked(node, name)
                        if type(value) in PLAIN:
                            nbytes += value.nbytes
                        elif type(value) is tuple:
                            nbytes += sum(tensor.nbytes for tensor in value if tensor is not None)
                        elif value is not None:
                            return None  # a tensor subclass, whose code is not to run
                        if by_hooks:
                            slots.let_go(value, by_hooks)
                following = node.next_functions
                if len(following) == 1:
                    target = following[0][0]
                    if target is not None and target not in seen:
                        stack.append(target)
                else:
                    for target, _ in reversed(following):
                        if target is not None and target not in seen:
                            stack.append(target)
        except (RuntimeError, TypeError):  # freed, stale, or not a list of tensors
            return None
        return tuple(kinds), numbers, nbytes


def _saved(node: Node, kind: Kind) -> Iterator[torch.Tensor]:
    """Yield what a node saved, without unpacking anything.

    Raises TypeError for what the program's own hooks have packed and for tensor subclasses, whose
    code must not run, and RuntimeError for a list that was freed.
    """
    for name in kind.names:
        value = slots.saved(node, name)
        for saved in value if isinstance(value, tuple | list) else (value,):
            data: Any = None if saved is None else saved.data
            if isinstance(data, Packed):
                data = data.tensor
            elif data is None:
                continue
            elif saved.unpack_hook is not None:
                raise TypeError
            if type(data) not in PLAIN:
                raise TypeError
            yield data


def _count(node: Node, kind: Kind) -> int | None:
    """Count the saved tensors of a node that can be read; None where that cannot be known."""
    if kind.is_slices or kind.is_compiled or type(node).__name__ == "CppFunction":
        return None
    try:
        return sum(1 for _ in _saved(node, kind))
    except (RuntimeError, TypeError):
        return None


def _saved_by_function(node: Node) -> list[torch.Tensor]:
    """Return what a Python Function saved; RuntimeError if any of it is stale."""
    kind = kind_of(type(node))
    if stale_by_engine(node, kind):
        raise RuntimeError
    return list(_saved(node, kind))

"""Finds the user's tensors whose graphs saved what has just been changed in place."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import FrameType
from typing import NamedTuple

import torch
from torch.autograd.graph import Node

from gradscope.code import source
from gradscope.collect.marks import Packed, token_of
from gradscope.collect.nodes import held as saved_in
from gradscope.collect.nodes import kind_of
from gradscope.collect.state import State
from gradscope.collect.walk import Walker
from gradscope.detect.foresight.reading import Read, Wanted, foretell
from gradscope.detect.foresight.shared_graphs import Held, tensors_of
from gradscope.model import Site
from gradscope.program.ahead.questions import FromFrames
from gradscope.program.tensors import held_node
from gradscope.rules import gs202

_MOST_NODES = 2_000  # that may be touched in one look
_MOST_MADE = 3
_MOST_NAMED = 20
_SLICES = 4  # CopySlices comes this soon after the node that it wraps
_NOTHING: tuple[weakref.ref[Packed], ...] = ()


@dataclass(slots=True)
class _OutOfDate:
    """What is out of date in one graph: the tensors' names, which nodes saved them, and where."""

    tensors: dict[str, None] = field(default_factory=dict)
    nodes: dict[str, None] = field(default_factory=dict)
    made: dict[Site, None] = field(default_factory=dict)


class Needed(NamedTuple):
    """A graph that went stale and that the code will run backward all the same, or may: under
    conditions then.
    """

    read: Read
    stale: _OutOfDate
    conditions: tuple[str, ...] | None

    def facts(self, changed_at: Site, after: int, by: gs202.By) -> gs202.StaleSoon:
        """Return the facts of the finding: changed at a place, after so many backward calls."""
        read, stale = self.read, self.stale
        tensors, nodes = tuple(stale.tensors)[:_MOST_NAMED], tuple(stale.nodes)[:_MOST_NAMED]
        saved = tensors, nodes, tuple(stale.made)[:_MOST_MADE]
        known = changed_at, read.name, *saved, read.site, read.backward, after, by, self.conditions
        again = read.again and not read.alone
        return gs202.StaleSoon(*known, carried=again and read.carried, again=again)


class StaleGraphs:
    """One look after a change; it lives no longer than that.

    ``is_changed`` picks the saved tensors in question, ``name_of`` returns what a finding calls one
    of them, and ``tolerant`` names the kinds of node that the change does no harm to.
    """

    def __init__(
        self,
        watch: State,
        is_changed: Callable[[Packed], bool],
        name_of: Callable[[torch.Tensor], str],
        tolerant: frozenset[str] = frozenset(),
    ) -> None:
        self._watch = watch
        self._is_changed = is_changed
        self._name_of = name_of
        self._tolerant = tolerant
        self._walker = Walker(_MOST_NODES)

    def needed(self, start: FromFrames, frames: Sequence[FrameType]) -> Needed | None:
        """Return the first graph that the code will run backward all the same; if there is none,
        the first that it may.
        """
        wanted = Wanted([h for h in tensors_of(frames) if self._traces(h)], self._traces)
        if not wanted.leads:
            return None
        foretold = foretell(wanted, start, frames)
        for held, read in foretold.reads:
            if not source.runs_a_part(read.backward):
                conditions = None if foretold.comes else foretold.conditions
                return Needed(read, self._stale_in(held), conditions)
        return None

    def _traces(self, held: Held) -> bool:
        return bool(self._stale_in(held).nodes)

    def _stale_in(self, held: Held) -> _OutOfDate:
        found = _OutOfDate()
        for node in self._walker.walk([held_node(held.tensor)]):
            for packed in () if node.name() in self._tolerant else self._saved_by(node):
                if packed.tensor is not None and self._is_changed(packed):
                    found.tensors[self._name_of(packed.tensor)] = None
                    found.nodes[node.name()] = None
                    if packed.place is not None:
                        found.made[packed.place.site] = None
        return found

    def _saved_by(self, node: Node) -> list[Packed]:
        """What a node saved: tied to it or waiting for its first look. Functions are asked."""
        token, kind = token_of(node), kind_of(type(node))
        pending = self._watch.ledger.pending
        references: Iterable[weakref.ref[Packed]]
        if token is not None:
            references = token.packs
        elif kind.is_function:
            return [data for _, data in saved_in(node, kind) if isinstance(data, Packed)]
        elif kind.is_slices:
            number = node._sequence_nr()
            near = (pending.get(n, _NOTHING) for n in range(number - _SLICES, number + 1))
            references = chain.from_iterable(near)
        else:
            return self._watch.saved_by(node)
        return [packed for reference in references if (packed := reference()) is not None]

"""Finds the user's tensors whose graphs saved parameters that an optimizer has just changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

from gradscope.foresight import source
from gradscope.foresight.held import Held, tensors_of
from gradscope.foresight.reading import dangerous_read
from gradscope.model import Finding, Site
from gradscope.names import storage_of
from gradscope.nodes import node_of
from gradscope.rules import gs202
from gradscope.sites import Place, site_of
from gradscope.tokens import token_of

if TYPE_CHECKING:
    from torch.autograd.graph import Node

    from gradscope.backward import Backward
    from gradscope.saved import Packed

_MOST_NODES = 2_000  # that may be touched after one step
_MOST_MADE = 3
_MOST_NAMED = 20


@dataclass(slots=True)
class _Stale:
    """What is out of date in one graph: the parameters' names, and which nodes saved them where."""

    parameters: dict[str, None] = field(default_factory=dict)
    nodes: dict[str, None] = field(default_factory=dict)
    made: dict[Site, None] = field(default_factory=dict)


class StaleGraphs:
    """One look after a step; it lives no longer than that."""

    def __init__(self, watch: Backward, optimizer: Any) -> None:
        self._watch = watch
        self._changed = {storage_of(p) for group in optimizer.param_groups for p in group["params"]} - {0}
        self._left = _MOST_NODES

    def findings(self, place: Place, frames: Sequence[FrameType]) -> list[Finding]:
        """The first graph that the code will run backward all the same."""
        step = site_of(place)
        assert step is not None
        for held in tensors_of(frames):
            stale = self._stale_in(held)
            if not stale.nodes:
                continue
            reading = dangerous_read(held.paths, frames)
            if reading is None or source.keywords_of(reading.backward) & {"inputs", "grad"}:
                continue
            facts = gs202.StaleSoon(
                step,
                reading.name,
                tuple(stale.parameters)[:_MOST_NAMED],
                tuple(stale.nodes)[:_MOST_NAMED],
                tuple(stale.made)[:_MOST_MADE],
                reading.read.site,
                reading.backward,
                self._watch.calls,
            )
            return [gs202.finding(facts)]
        return []

    def _stale_in(self, held: Held) -> _Stale:
        found = _Stale()
        start = node_of(held.tensor)
        seen: set[Node] = set()
        stack = [] if start is None else [start]
        while stack and self._left > 0:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            self._left -= 1
            for packed in self._saved_by(node):
                tensor = packed.tensor
                if tensor is not None and packed.is_stale and storage_of(tensor) in self._changed:
                    found.parameters[self._watch.names.of_tensor(tensor) or "a parameter"] = None
                    found.nodes[node.name()] = None
                    site = site_of(packed.place)
                    if site is not None:
                        found.made[site] = None
            stack += [following for following, _ in reversed(node.next_functions) if following is not None]
        return found

    def _saved_by(self, node: Node) -> list[Packed]:
        """The saved tensors of a node: tied to it, or waiting for the first look at it."""
        token = token_of(node)
        references = token.packs if token is not None else self._watch.ledger.pending.get(node._sequence_nr(), ())
        return [packed for packed in (reference() for reference in references) if packed is not None]

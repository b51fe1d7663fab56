"""Remembers which optimizer step changed which parameter, and finds the line of any other change in place."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from gradscope import statements
from gradscope.model import BackwardCall, Site
from gradscope.names import storage_of
from gradscope.rules.gs201 import ModifiedAt, ModifiedBetween, ModifiedByStep
from gradscope.sites import Place, site_of
from gradscope.statements import Statement

if TYPE_CHECKING:
    from gradscope.saved import Packed
    from gradscope.tokens import Stale, Token

_MOST_STEPS = 64  # remembered for one parameter


class Mutations:
    """Evidence about changes in place. Versions of parameters are compared only at optimizer steps, and only while some
    graph still holds saved tensors: in a healthy loop it holds none by then.
    """

    def __init__(self) -> None:
        self._before: dict[int, int] = {}
        self._steps: dict[int, tuple[weakref.ref[torch.Tensor], list[tuple[int, int, Place | None]]]] = {}
        self._seen: weakref.WeakKeyDictionary[Packed, Site] = weakref.WeakKeyDictionary()

    def before_step(self, optimizer: Any) -> None:
        """Note the versions of all parameters of an optimizer that is about to step."""
        self._before = {id(p): p._version for p in _parameters(optimizer)}

    def after_step(self, optimizer: Any, place: Place | None) -> None:
        """Note which of them the step has changed."""
        for parameter in _parameters(optimizer):
            before = self._before.get(id(parameter))
            now = parameter._version
            if before is None or before == now:
                continue
            key = storage_of(parameter)
            known = self._steps.get(key)
            if known is None or known[0]() is not parameter:
                known = self._steps[key] = (weakref.ref(parameter), [])
            known[1].append((before, now, place))
            del known[1][:-_MOST_STEPS]
        self._before = {}

    def note(self, packed: Packed, site: Site) -> bool:
        """Note the line that was seen to change a saved tensor; False if it was an optimizer's step, which is known already."""
        assert packed.tensor is not None
        if self._step_after(packed.tensor, packed.version) is not None:
            return False
        self._seen[packed] = site
        return True

    def _step_after(self, tensor: torch.Tensor, version: int) -> Site | None:
        """The step that changed a tensor when it had this version."""
        known = self._steps.get(storage_of(tensor))
        if known is None or known[0]() is None:
            return None
        return next((site_of(place) for before, after, place in known[1] if before <= version < after), None)

    def who_modified(
        self, stale: Stale, token: Token, call: BackwardCall, visible: frozenset[str]
    ) -> ModifiedAt | ModifiedByStep | ModifiedBetween:
        """What is known of the first change of a tensor since it was saved; ``visible`` are the program's names for it."""
        step = self._step_after(stale.tensor, stale.version)
        if step is not None:
            return ModifiedByStep(step)
        for packed in (reference() for reference in token.packs):
            if packed is not None and packed.tensor is stale.tensor and packed in self._seen:
                return ModifiedAt(self._seen[packed])
        saved_at = site_of(token.place)
        files = dict.fromkeys(s.file for s in (saved_at, call.site) if s is not None)
        candidates = tuple(s for file in files for s in statements.in_place_statements(file))
        candidates = statements.between(candidates, saved_at, call.site)
        names = visible | (statements.names_at(saved_at) if saved_at is not None else frozenset())
        found = likeliest(candidates, names, saved_at)
        return ModifiedBetween(saved_at, call.site) if found is None else ModifiedAt(found.site)


def node_site(built: Sequence[str | None], after: Site | None, before: Site | None) -> Site | None:
    """Where a node was built of which no saved tensor was seen (a multiplication by a Python number), if it can be told.

    ``built`` are the names of the nodes built one after the other since ``after``, where they are known, up to the node
    in question; ``before`` is the next place that is known.
    """
    files = dict.fromkeys(s.file for s in (after, before) if s is not None)
    candidates = tuple(s for file in files for s in statements.operations(file, built[-1] or ""))
    found = likeliest(statements.between(candidates, after, before), frozenset(), after)
    if found is not None:
        return found.site
    if after is None or before is None or (after.file, after.function) != (before.file, before.function):
        return None
    if after.line == before.line:
        return after
    return statements.aligned(after.file, after.function, after.line + 1, before.line - 1, built)


def likeliest(candidates: tuple[Statement, ...], names: frozenset[str], near: Site | None) -> Statement | None:
    """The one candidate that the evidence prefers to all others; None when it cannot be told.

    A statement that changes something by a name the tensor is known by speaks loudest, then one in the function that saved it.
    """

    def weight(statement: Statement) -> tuple[bool, bool]:
        return bool(statement.names & names), near is not None and statement.site.function == near.function

    lines = {s.site.line: s for s in sorted(candidates, key=lambda s: (weight(s), -s.site.line))}
    ranked = sorted(lines.values(), key=weight, reverse=True)
    if not ranked or (len(ranked) > 1 and weight(ranked[0]) == weight(ranked[1])):
        return None
    return ranked[0]


def _parameters(optimizer: Any) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]

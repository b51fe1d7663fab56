"""Remembers which optimizer step modified which parameter, and finds the line of any other in-place
modification.
"""

from __future__ import annotations

import weakref
from array import array
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from gradscope.code import statements
from gradscope.code.statements import Statement
from gradscope.model import BackwardCall, Site
from gradscope.program.sites import Place, site_of
from gradscope.program.tensors import parameters_of, storage_of
from gradscope.rules.gs201 import Modified

if TYPE_CHECKING:
    from gradscope.collect.marks import NodeMark, Packed, Stale

# Steps of optimizers that are remembered, to say which of them modified a saved parameter: most
# often the last one. If it was an older one, the finding names no line.
_MOST_STEPS = 128


class _OptimizerStep:
    """One step of an optimizer: the versions of its parameters before and after. It holds no
    tensor.
    """

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = weakref.ref(optimizer)
        self._before = self._after = self._versions(optimizer)
        self.place: Place | None = None

    def end(self, optimizer: Any, place: Place | None) -> None:
        self._after = self._versions(optimizer)
        self.place = place

    def changed(self, tensor: torch.Tensor, version: int) -> bool:
        """Return whether this step was the first to modify a tensor that had this version."""
        key, parameters = storage_of(tensor), parameters_of(self.optimizer())
        return bool(key) and any(
            before <= version < after and storage_of(parameter) == key
            for parameter, before, after in zip(parameters, self._before, self._after, strict=False)
        )

    def owns(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor is a parameter that the step may modify."""
        key, parameters = storage_of(tensor), parameters_of(self.optimizer())
        return bool(key) and any(storage_of(parameter) == key for parameter in parameters)

    @staticmethod
    def _versions(optimizer: Any) -> array[int]:
        return array("Q", [parameter._version for parameter in parameters_of(optimizer)])


class Mutations:
    """Evidence of who modified saved tensors in place.

    Versions of parameters are compared only at optimizer steps, and only while a graph still holds
    saved tensors: in a healthy loop none does by then.
    """

    def __init__(self) -> None:
        self._step: _OptimizerStep | None = None
        self._steps: deque[_OptimizerStep] = deque(maxlen=_MOST_STEPS)
        self._seen: weakref.WeakKeyDictionary[Packed, Site] = weakref.WeakKeyDictionary()

    def before_step(self, optimizer: Any, *, looks: bool) -> None:
        """Note the versions of all parameters of an optimizer that is about to step; without
        ``looks`` only forget those of the step before.
        """
        self._step = _OptimizerStep(optimizer) if looks else None

    def after_step(self, optimizer: Any, place: Place | None) -> None:
        """Note which parameters the step has modified."""
        step, self._step = self._step, None
        if step is not None and step.optimizer() is optimizer:
            step.end(optimizer, place)
            self._steps.append(step)

    def note(self, packed: Packed, site: Site) -> bool:
        """Note the line that was seen to modify a saved tensor; return False if that was an
        optimizer step. The step is known already, or will be when it ends: lines within it are seen
        if the program wrote the optimizer.
        """
        assert packed.tensor is not None
        is_under_way = self._step is not None and self._step.owns(packed.tensor)
        if is_under_way or self._step_after(packed.tensor, packed.version) is not None:
            return False
        self._seen[packed] = site
        return True

    def _step_after(self, tensor: torch.Tensor, version: int) -> Site | None:
        """Return the line of the step that modified a tensor when it had this version."""
        return next(
            (site_of(step.place) for step in self._steps if step.changed(tensor, version)), None
        )

    def who_modified(
        self, stale: Stale, mark: NodeMark, call: BackwardCall, visible: frozenset[str]
    ) -> Modified:
        """Return what is known of the first modification of a tensor since it was saved.

        The evidence, from best to worst: an optimizer step over which its version moved; the line
        after which the line watch saw the version move; and the one statement in the source,
        between saving and the call, that is an in-place operation on one of the tensor's
        ``visible`` names.
        """
        step = self._step_after(stale.tensor, stale.version)
        if step is not None:
            return Modified(step, step, by_step=True)
        for packed in (reference() for reference in mark.packs):
            if packed is not None and packed.tensor is stale.tensor and packed in self._seen:
                return Modified(self._seen[packed], self._seen[packed])
        saved_at = site_of(mark.place)
        files = dict.fromkeys(s.file for s in (saved_at, call.site) if s is not None)
        candidates = tuple(s for file in files for s in statements.in_place_statements(file))
        candidates = statements.between(candidates, saved_at, call.site)
        names = visible | (statements.names_at(saved_at) if saved_at is not None else frozenset())
        found = likeliest(candidates, names, saved_at)
        return Modified(*((saved_at, call.site) if found is None else (found.site, found.site)))


def node_site(name: str, after: Site | None, before: Site | None, *, one_line: bool) -> Site | None:
    """Return the line that built a node of this kind whose saved tensors no hook has seen, such as
    ``x * 2`` with a Python number; None if the source does not tell.

    ``after`` and ``before`` are the lines that built the nodes before and after it. ``one_line``:
    if both are the same line, nothing else ran in between.
    """
    files = dict.fromkeys(s.file for s in (after, before) if s is not None)
    candidates = tuple(s for file in files for s in statements.operations(file, name))
    found = likeliest(statements.between(candidates, after, before), frozenset(), after)
    if found is not None:
        return found.site
    if not one_line or after is None or before is None:
        return None
    here, there = ((each.file, each.function, each.line) for each in (after, before))
    return after if here == there else None


def likeliest(
    candidates: tuple[Statement, ...], names: frozenset[str], near: Site | None
) -> Statement | None:
    """Return the one candidate that the evidence prefers to all others; None if two are equally
    likely.

    The best evidence is that a statement modifies something under one of the tensor's names; then,
    that it is in the function that saved the tensor.
    """

    def weight(statement: Statement) -> tuple[bool, bool]:
        is_near = near is not None and statement.site.function == near.function
        return bool(statement.names & names), is_near

    lines = {s.site.line: s for s in sorted(candidates, key=lambda s: (weight(s), -s.site.line))}
    ranked = sorted(lines.values(), key=weight, reverse=True)
    if not ranked or (len(ranked) > 1 and weight(ranked[0]) == weight(ranked[1])):
        return None
    return ranked[0]

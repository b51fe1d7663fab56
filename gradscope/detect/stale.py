"""Gathers what is known of a saved tensor that was modified in place."""

from __future__ import annotations

import sys
from dataclasses import replace

import torch

from gradscope.collect.evidence import Evidence
from gradscope.collect.marks import Stale
from gradscope.detect.built import node_at
from gradscope.detect.proposing import proposed
from gradscope.fixing.gs201 import Stepped, fixes_for_step
from gradscope.model import Finding, SavedState, SavedTensor
from gradscope.program.sites import site_of, user_frames
from gradscope.program.tensors import describe, shape_of, storage_of, version_of
from gradscope.program.variables import variables
from gradscope.rules import gs201


def stale_tensor(
    evidence: Evidence, first: int, stale: dict[int, list[Stale]]
) -> gs201.StaleTensor:
    """Return what is known of the stale tensors of a call, the first being at node ``first``."""
    state, token = evidence.state, evidence.look.tokens[first]
    found = stale[first][0]
    tensor = found.tensor
    node = node_at(evidence.look, evidence.graph, first)
    saved = next((s for s in node.saved if s.state is SavedState.STALE), None)
    if saved is None:
        shape, dtype = shape_of(tensor) or (), describe(tensor).split("[")[0]
        saved = SavedTensor(found.name, shape, dtype, str(tensor.device), tensor.nbytes)
    name = state.names.of_tensor(tensor)
    saved = replace(saved, version=found.version, site=site_of(token.place), source=name)
    names = _names_of(tensor, name)
    return gs201.StaleTensor(
        call=evidence.record,
        node=node,
        saved=saved,
        version_now=version_of(tensor),
        modified=state.mutations.who_modified(found, token, evidence.record, names),
        more=sum(map(len, stale.values())) - 1,
    )


def as_foretold(evidence: Evidence, facts: gs201.StaleTensor) -> Finding:
    """Return the finding, with the fixes that were proposed when the tensor was changed."""
    found = gs201.finding(facts)
    for earlier in reversed(evidence.state.foretold):
        if earlier.code == "GS202" and earlier.announces(found):
            return replace(found, fix=earlier.fix, alternatives=earlier.alternatives)
    call = evidence.record.site
    if not isinstance(facts.modified, gs201.ModifiedByStep) or call is None:
        return found
    step, made = facts.modified.site, facts.saved.site or facts.node.site
    before = step.function == call.function and call.line < step.line
    root = facts.call.roots[0].name if len(facts.call.roots) == 1 else None
    known = Stepped(
        step=step,
        next_call=call,
        holder="" if before else root or "the loss",
        tensors=(facts.saved.source or "a parameter",),
        made=() if made is None else (made,),
        carried=before,
    )
    fixes = proposed(evidence.state.notes, lambda: fixes_for_step(known))
    return replace(found, fix=fixes[0], alternatives=fixes[1:]) if fixes else found


def _names_of(tensor: torch.Tensor, known: str | None) -> frozenset[str]:
    """Return the program's names for a tensor or for others that share its memory."""
    found = set()
    if known:
        last = known.rsplit(".", 1)[-1]
        found = {known, last, f"self.{last}"}
    storage = storage_of(tensor)
    for frame in user_frames(sys._getframe(1)):
        for name, value in variables(frame):
            if issubclass(type(value), torch.Tensor) and storage and storage_of(value) == storage:
                found.add(name)
    return frozenset(name for name in found if name)

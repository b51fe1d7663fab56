"""Judges the look at a graph (freed nodes, stale tensors, donated buffers): the certain
findings.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import torch
from torch.autograd.graph import Node as AutogradNode

from gradscope.collect.backward import Evidence
from gradscope.collect.calls import Call, EngineCall
from gradscope.collect.generations import OTHER
from gradscope.collect.look import Look
from gradscope.collect.looker import Looker
from gradscope.collect.marks import Stale, token_of
from gradscope.collect.slots import FREED_TEXT
from gradscope.collect.snapshot import picture
from gradscope.collect.state import State
from gradscope.collect.walk import reachable
from gradscope.detect.node_facts import built_at, needs_saved, node_at
from gradscope.model import BackwardCall, Finding, SavedState, SavedTensor
from gradscope.program.sites import (
    USER,
    Place,
    owner_of,
    place_in,
    site_of,
    user_frame,
    user_frames,
)
from gradscope.program.tensors import describe, nbytes_of, shape_of, storage_of, version_of
from gradscope.program.variables import variables
from gradscope.rules import gs101, gs104, gs201, gs202, unannounced
from gradscope.torch_private import DisableTorchFunction, FunctionNode, has_donated_buffers

_MOST_NODES_NAMED = 50
_WARNINGS = {"GS101": ("GS102", "GS103"), "GS201": ("GS202",)}


def examine(evidence: Evidence) -> list[Finding]:
    """Return the finding for what the engine will raise first, if it will raise.

    The order in which the engine runs nodes decides which of several hazards it meets, so it is
    played through.
    """
    look, call = evidence.look, evidence.call
    keeps = call.keep or evidence.call.record.create_graph
    needed = {i for i in look.freed if look.will_run(i) and needs_saved(look, i)}
    stale: dict[int, list[Stale]] = {}
    for i, found in look.stale:
        if look.will_run(i) and needs_saved(look, i):
            stale.setdefault(i, []).append(found)
    donated = {
        i
        for i in look.compiled
        if keeps and look.will_run(i) and has_donated_buffers(type(look.nodes[i]))
    }
    if not (needed or stale or donated):
        return []
    order = run_order(look)
    first = next((i for i in order if i in needed or i in stale or i in donated), None)
    if first is None:
        return []
    if first in needed:
        return [gs101.finding(_freed_graph(evidence, [i for i in order if i in needed]))]
    if first in stale:
        return [_as_foretold(evidence, _stale_tensor(evidence, first, stale))]
    nodes = tuple(node_at(look, evidence.graph, i) for i in order if i in donated)
    return [gs104.finding(evidence.call.record, nodes)]


def foresee(
    state: State, looker: Looker, outputs: Sequence[Any], inputs: Sequence[Any], frame: FrameType
) -> list[Finding]:
    """Return what a backward call made in ``frame`` would raise now; books nothing."""
    user = user_frame(frame)
    call = Call(state.calls, None if user is None else place_in(user), keep=False)
    with DisableTorchFunction():
        asked = EngineCall(outputs, False, False, inputs, True)
        roots = asked.roots
        look = looker.look_for(asked, roots, call.place)
        call.roots = look.numbers_of(roots)
        del roots
        if not look.is_wrong:
            return []
        graph = picture(look.index, (), names=state.names, left=look.left, runs=look.will_run)
        call.record = BackwardCall(state.calls, "backward", site_of(call.place))
        return examine(Evidence(state, call, look, graph))


@dataclass(slots=True)
class _Ready:
    """A node in the engine's queue: of two with the same number neither goes before the other."""

    i: int
    number: int

    def __lt__(self, other: _Ready) -> bool:
        return self.number > other.number


def run_order(look: Look) -> list[int]:
    """The nodes that will run, in the order in which the engine runs them on one device.

    A node is ready once all nodes that feed it ran; of the ready ones the youngest runs first,
    AccumulateGrad before all (torch/csrc/autograd/engine.cpp, ``ReadyQueue``). Nodes of different
    threads may have the same number: then it is up to the queue, and ``heapq`` does step by step
    what ``std::priority_queue`` of libstdc++ does.
    """
    waiting = [0] * len(look.targets)
    for leaving in look.targets:
        for target in leaving:
            waiting[target] += 1
    ready: list[_Ready] = []

    def push(i: int) -> None:
        if look.will_run(i):
            heapq.heappush(ready, _Ready(i, look.tokens[i].sequence_nr % OTHER))

    for i, count in enumerate(waiting):
        if not count:
            push(i)
    order = []
    while ready:
        i = heapq.heappop(ready).i
        order.append(i)
        for target in look.targets[i]:
            waiting[target] -= 1
            if not waiting[target]:
                push(target)
    return order


def _freed_graph(evidence: Evidence, freed: list[int]) -> gs101.FreedGraph:
    state, look, call = evidence.state, evidence.look, evidence.call
    token = look.tokens[freed[0]]
    by = token.freed_by
    assert by is not None
    place = token.place
    is_unseen = state.budget is not None and by.place is None  # the budget was spent
    foreseen = state.foreseen.get(by.number)
    roots = {*range(len(look.targets))}.difference(*look.targets)
    anew = reachable(look.targets, roots, cut={*freed})
    lines = (built_at(look, state.generations, i) for i in freed[:_MOST_NODES_NAMED])
    made = next((line for line in lines if line is not None), None)
    return gs101.FreedGraph(
        call=evidence.call.record,
        nodes=tuple(node_at(look, evidence.graph, i) for i in freed[:_MOST_NODES_NAMED]),
        made=(made,) if made is not None else (),
        freed_by=None if is_unseen else _record_of(by),
        freed_unseen=is_unseen,
        freed_same_statement=by.place is call.place and by.number > 0,
        same_root=bool(by.roots) and by.roots == call.roots,
        made_again=place is not None and place.last_sequence_nr >= by.sequence_nr,
        trains_anew=any(not look.targets[i] for i in anew),
        stepped_between=state.steps != by.steps,
        foreseen=() if foreseen is None else foreseen.fixes,
        foretold=None if foreseen is None else foreseen.site,
    )


def _record_of(call: Call) -> BackwardCall | None:
    return call.record if call.number else None


def missed(text: str, call: Call, look_again: Callable[[], Evidence]) -> Finding | None:
    """Return a finding where the engine raised what was not announced before the call."""
    finding = unannounced(text, call.record)
    if finding is None or finding.code in {each.code for each in call.findings}:
        return None
    return explain(look_again(), finding)


def explain_read(error: BaseException, calls: int) -> Finding | None:
    """The finding for an exception that the user's code met by reading what a node saved, after it
    was freed.
    """
    if FREED_TEXT not in str(error):
        return None
    entry, innermost = error.__traceback__, None
    while entry is not None:
        innermost = entry if owner_of(entry.tb_frame.f_code) == USER else innermost
        entry = entry.tb_next
    if innermost is None:
        return None
    site = Place(innermost.tb_frame.f_code, innermost.tb_lasti).site
    for _, value in variables(innermost.tb_frame):
        token = token_of(value) if issubclass(type(value), (FunctionNode, AutogradNode)) else None
        if token is not None and token.freed_by is not None:
            by = _record_of(token.freed_by)
            return gs101.finding_of_read(site, calls, value.name(), site_of(token.place), by)
    return gs101.finding_of_read(site, calls)


def explain(evidence: Evidence, unexpected: Finding) -> Finding:
    """Return what is known of an error that was not announced, from a look after it.

    Another call may have freed a part of the graph meanwhile, or a hook or another thread may have
    modified what it saved: no look before the call can see that. If a prediction was made of this
    line, the error is what it warned of. All else is ``unexpected``, a fault of gradscope.
    """
    seen = None
    if unexpected.code == "GS101":
        seen = _freed_meanwhile(evidence)
    elif unexpected.code == "GS201":
        seen = _modified_meanwhile(evidence)
    return seen or _as_predicted(evidence.state.foretold, unexpected) or unexpected


def _freed_meanwhile(evidence: Evidence) -> Finding | None:
    look, call = evidence.look, evidence.call

    def is_another(by: Call | None) -> bool:
        """Return whether a call has freed something while this one ran."""
        return by is not None and by is not call and (by.number > call.number or call.met is by)

    freed = [i for i in look.freed if is_another(look.tokens[i].freed_by)]
    by = look.tokens[freed[0]].freed_by if freed else call.met or call.beside
    if by is None:
        return None
    made = built_at(look, evidence.state.generations, freed[0]) if freed else None
    return gs101.finding_meanwhile(
        gs101.FreedGraph(
            call=evidence.call.record,
            nodes=tuple(node_at(look, None, i) for i in freed[:1]),
            made=(made,) if made is not None else (),
            freed_by=by.record,
        )
    )


def _modified_meanwhile(evidence: Evidence) -> Finding | None:
    for first, stale in evidence.look.stale:
        if evidence.look.will_run(first):
            return gs201.finding_meanwhile(_stale_tensor(evidence, first, {first: [stale]}))
    return None


def _as_predicted(foretold: Iterable[Finding], unexpected: Finding) -> Finding | None:
    """Return the error as the one that a prediction for its line warned of."""
    for finding in foretold:
        if finding.code in _WARNINGS.get(unexpected.code, ()) and finding.expects(unexpected.site):
            return replace(
                unexpected,
                message=f"the engine raised what {finding.code} has warned of",
                missed=False,
                related=(*finding.related, *unexpected.related),
                fix=finding.fix,
            )
    return None


def _stale_tensor(
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
        saved = SavedTensor(found.name, shape, dtype, str(tensor.device), nbytes_of(tensor))
    name = state.names.of_tensor(tensor)
    saved = replace(saved, version=found.version, site=site_of(token.place), source=name)
    names = _names_of(tensor, name)
    return gs201.StaleTensor(
        call=evidence.call.record,
        node=node,
        saved=saved,
        version_now=version_of(tensor),
        modified=state.mutations.who_modified(found, token, evidence.call.record, names),
        more=sum(map(len, stale.values())) - 1,
    )


def _as_foretold(evidence: Evidence, facts: gs201.StaleTensor) -> Finding:
    """Return the finding, with the fixes that were proposed when the tensor was changed."""
    found = gs201.finding(facts)
    for earlier in reversed(evidence.state.foretold):
        if earlier.code == "GS202" and earlier.announces(found):
            return replace(found, fix=earlier.fix, alternatives=earlier.alternatives)
    call = evidence.call.record.site
    step = facts.modified.last
    if not facts.modified.by_step or call is None or step is None:
        return found
    if step.function != call.function or step.line <= call.line:
        return found
    others = () if found.fix is None else (found.fix,)
    return replace(found, fix=gs202.fix_of_state("", call), alternatives=others)


def _names_of(tensor: torch.Tensor, known: str | None) -> frozenset[str]:
    """Return the program's names for a tensor or for others that share its memory."""
    last = (known or "").rsplit(".", 1)[-1]
    found = {known, last, f"self.{last}"} if known else set()
    storage = storage_of(tensor)
    for frame in user_frames(sys._getframe(1)):
        for name, value in variables(frame):
            if issubclass(type(value), torch.Tensor) and storage and storage_of(value) == storage:
                found.add(name)
    return frozenset(name for name in found if name)

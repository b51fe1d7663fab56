"""Makes the certain findings from the inspection of a graph: freed nodes, stale tensors, donated
buffers, roots that have no graph, and inputs that no graph reaches, also if zeros take the place of
their gradients.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from types import FrameType

import torch
from torch.autograd.graph import Node as AutogradNode

from gradscope.code import source, statements
from gradscope.collect.backward import Evidence
from gradscope.collect.calls import Call, EngineCall
from gradscope.collect.generations import OTHER
from gradscope.collect.inspection import Inspection
from gradscope.collect.inspector import Inspector
from gradscope.collect.marks import Stale, mark_of
from gradscope.collect.observers import Observer
from gradscope.collect.slots import FREED_TEXT
from gradscope.collect.snapshot import picture
from gradscope.collect.state import State
from gradscope.collect.walk import reachable
from gradscope.detect import checkpoint_mismatch
from gradscope.detect.node_facts import built_at, needs_saved, node_at
from gradscope.formatting import followers_last
from gradscope.model import BackwardCall, Finding, SavedState, SavedTensor, Site
from gradscope.program.names import entries_of, names_in, parameters_in
from gradscope.program.sites import USER, Place, classify, owner_of, place_of, site_of, user_frames
from gradscope.program.tensors import (
    TensorRef,
    describe,
    is_zero,
    leaves_of,
    shape_of,
    storage_of,
    version_of,
)
from gradscope.program.variables import variables
from gradscope.rules import gs101, gs104, gs201, gs501, gs505, unannounced
from gradscope.torch_private import DisableTorchFunction, FunctionNode, has_donated_buffers

# Freed nodes that a finding lists, for the picture and the JSON report: the text names some, and
# the line of the first that has one.
_MOST_NODES_NAMED = 50
# Inputs of one call that a finding describes: the text names four, the JSON report all.
_MOST_INPUTS = 1_000
_GRAD = getattr(torch.autograd.grad, "__code__", None)
_WARNINGS = {"GS101": ("GS102", "GS103"), "GS201": ("GS202",)}


def examine(evidence: Evidence) -> list[Finding]:
    """Return the finding for the error that the engine will raise first, if it will raise one.

    If a graph has several problems, the order in which the engine runs nodes decides which of them
    it meets. So that order is simulated.
    """
    look, call = evidence.look, evidence.call
    # torch checks the roots and the inputs of a call before it runs any node.
    if look.bare:
        return [gs501.finding(_no_graph(evidence))]
    if look.constant:
        return [gs505.finding(_unused(evidence, look.constant))]
    keeps = call.keep or call.record.create_graph
    # A freed node is no problem if the call does not run it, or if it needs nothing that it saved:
    #
    #     (x * 2).sum().backward()  # MulBackward saved no tensor, so it can run any number of times
    needed = {i for i in look.freed if look.will_run(i) and needs_saved(look, i)}
    stale: dict[int, list[Stale]] = {}
    for i, found in look.stale:
        if look.will_run(i) and needs_saved(look, i):
            stale.setdefault(i, []).append(found)
    # What torch.compile built frees its buffers in its own code, so it refuses retain_graph=True.
    compiled = filter(look.will_run, look.compiled if keeps else ())
    donated = {i for i in compiled if has_donated_buffers(type(look.nodes[i]))}
    wrong = needed | donated | stale.keys()
    order = run_order(look) if wrong else []
    first = next((i for i in order if i in wrong), None)
    if first is None:  # torch misses an input only when all nodes have run
        return [gs505.finding(_unused(evidence, look.unused))] if look.unused else []
    if first in needed:
        return [gs101.finding(_freed_graph(evidence, [i for i in order if i in needed]))]
    if first in stale:
        return [_as_foretold(evidence, _stale_tensor(evidence, first, stale))]
    nodes = tuple(node_at(look, evidence.graph, i) for i in order if i in donated)
    return [gs104.finding(call.record, nodes)]


def foresee(inspector: Inspector, asked: EngineCall, frame: FrameType) -> list[Finding]:
    """Return what a backward call made in ``frame`` would raise now; record nothing."""
    state = inspector.state
    call = Call(state.calls, place_of(frame), asked.keep_graph)
    with DisableTorchFunction():
        roots = asked.roots
        look = inspector.inspect(asked, roots, call.place)
        call.roots = look.numbers_of(roots)
        del roots  # no node may be held longer than its inspection
        if not look.is_wrong:
            return []
        graph = picture(look.index, (), names=state.names, left=look.left, runs=look.will_run)
        kept = asked.keep_graph, asked.create_graph
        call.record = BackwardCall(state.calls, asked.word, site_of(call.place), (), *kept)
        return examine(Evidence(state, call, look, graph))


def run_order(look: Inspection) -> list[int]:
    """Return the nodes that will run, in the order in which the engine runs them on one device.

    A node is ready once all nodes that feed it have run. Of the ready nodes the youngest runs
    first, and AccumulateGrad before all others (torch/csrc/autograd/engine.cpp, ``ReadyQueue``). If
    nodes of different threads have the same sequence number, the order is up to the queue.
    """
    return followers_last(
        look.targets, lambda i: -(look.marks[i].sequence_nr % OTHER), look.will_run
    )


def _freed_graph(evidence: Evidence, freed: list[int]) -> gs101.FreedGraph:
    state, look, call = evidence.state, evidence.look, evidence.call
    mark = look.marks[freed[0]]
    by = mark.freed_by
    assert by is not None
    place = mark.place
    is_unseen = state.budget is not None and by.place is None  # freed while the budget was spent
    foreseen = state.foreseen.get(by.number)
    roots = {*range(len(look.targets))}.difference(*look.targets)
    # Leaves that a path without any freed node reaches would still be trained if the graph below
    # the freed nodes were detached, so a detach() is worth proposing.
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
        same_root=by.roots == call.roots,
        made_again=place is not None and place.last_sequence_nr >= by.sequence_nr,
        trains_anew=any(not look.targets[i] for i in anew),
        stepped_between=state.steps != by.steps,
        foreseen=() if foreseen is None else foreseen.fixes,
        foretold=None if foreseen is None else foreseen.site,
    )


def _record_of(call: Call) -> BackwardCall | None:
    return call.record if call.number else None


def missed(error: BaseException, call: Call, look_again: Callable[[], Evidence]) -> Finding | None:
    """Return a finding if the engine raised an error that was not reported before the call."""
    finding = unannounced(str(error), call.record)
    if finding is None or finding.code in {each.code for each in call.findings}:
        return None
    if finding.code == "GS601":
        return checkpoint_mismatch.explain(look_again(), error, way_of(error))
    if finding.code == "GS602":
        return None  # the observer of reducers explains that
    return explain(look_again(), finding)


def explain_read(error: BaseException, calls: int) -> Finding | None:
    """Return the finding for an exception that the user's code got by reading a freed saved tensor,
    such as ``loss.grad_fn._saved_self`` after ``loss.backward()``.
    """
    if FREED_TEXT not in str(error):
        return None
    innermost = next((each for each in way_of(error) if owner_of(each[1].code) == USER), None)
    if innermost is None:
        return None
    frame, place = innermost
    # Torch does not say which node was read: it is one that a variable of the frame holds.
    for _, value in variables(frame):
        mark = mark_of(value) if issubclass(type(value), (FunctionNode, AutogradNode)) else None
        if mark is not None and mark.freed_by is not None:
            by = _record_of(mark.freed_by)
            return gs101.finding_of_read(place.site, calls, value.name(), site_of(mark.place), by)
    return gs101.finding_of_read(place.site, calls)


def explain(evidence: Evidence, unexpected: Finding) -> Finding:
    """Return what is known of an error that was not reported before the call, from an inspection
    after it.

    Three things cannot be seen before the call: another call frees a part of the graph meanwhile; a
    hook or another thread modifies a saved tensor; a derivative returns no gradient. If a
    prediction was made for this line, the error is what it warned of. Anything else is
    ``unexpected``, and a bug in gradscope.
    """
    known: dict[str, Callable[[Evidence], Finding | None]] = {
        "GS101": _freed_meanwhile,
        "GS201": _modified_meanwhile,
        "GS505": partial(_not_given, text=unexpected.related[0].message),
    }
    find = known.get(unexpected.code)
    seen = None if find is None else find(evidence)
    return seen or _as_predicted(evidence.state.foretold, unexpected) or unexpected


def _freed_meanwhile(evidence: Evidence) -> Finding | None:
    look, call = evidence.look, evidence.call

    def is_another(by: Call | None) -> bool:
        """Return whether a different call freed something while this one ran."""
        return by is not None and by is not call and (by.number > call.number or call.met is by)

    freed = [i for i in look.freed if is_another(look.marks[i].freed_by)]
    by = look.marks[freed[0]].freed_by if freed else call.met or call.beside
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


def _not_given(evidence: Evidence, text: str) -> Finding | None:
    """Return the finding for an input that the graph reaches, but for which a derivative on the way
    returned None. Newer versions of torch say which input it is.
    """
    look = evidence.look
    if look.unused:
        return None
    said = re.search(r"at index (\d+)", text)
    which = range(len(look.asked.inputs)) if said is None else (int(said[1]),)
    return gs505.finding(_unused(evidence, which)._replace(led_to=True))


def _as_predicted(foretold: Iterable[Finding], unexpected: Finding) -> Finding | None:
    """Return the error as the one that a prediction for its line warned of, if there is one."""
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
    state, mark = evidence.state, evidence.look.marks[first]
    found = stale[first][0]
    tensor = found.tensor
    node = node_at(evidence.look, evidence.graph, first)
    saved = next((s for s in node.saved if s.state is SavedState.STALE), None)
    if saved is None:
        shape, dtype = shape_of(tensor) or (), describe(tensor).split("[")[0]
        nbytes = tensor.nbytes if storage_of(tensor) else 0  # of a sparse or opaque one
        saved = SavedTensor(found.name, shape, dtype, str(tensor.device), nbytes)
    name = state.names.of_tensor(tensor)
    saved = replace(saved, version=found.version, source=name)
    names = _names_of(tensor, name)
    call = evidence.call.record
    modified = state.mutations.who_modified(found, mark, call, names)
    # Whether the step stands after the call in the same function: then the graph is of an earlier
    # iteration, and not of this one before the step.
    here, step = call.site, modified.last if modified.by_step else None
    return gs201.StaleTensor(
        call=call,
        node=node,
        saved=saved,
        version_now=version_of(tensor),
        modified=modified,
        more=sum(map(len, stale.values())) - 1,
        is_older=bool(here and step and here.function == step.function and here.line < step.line),
    )


def _as_foretold(evidence: Evidence, facts: gs201.StaleTensor) -> Finding:
    """Return the finding with the fix that GS202 proposed when the tensor was modified, so that the
    same problem is not given two different fixes.
    """
    found = gs201.finding(facts)
    for earlier in reversed(evidence.state.foretold):
        if earlier.code == "GS202" and earlier.announces(found):
            return replace(found, fix=earlier.fix)
    return found


def _names_of(tensor: torch.Tensor, known: str | None) -> frozenset[str]:
    """Return the program's names for a tensor or for others that share its memory."""
    last = (known or "").rsplit(".", 1)[-1]
    found = {known, last, f"self.{last}"} if known else set()
    storage = storage_of(tensor)
    pairs = chain.from_iterable(map(variables, user_frames(sys._getframe(1)) if storage else ()))
    tensors = ((name, value) for name, value in pairs if issubclass(type(value), torch.Tensor))
    found |= {name for name, value in tensors if storage_of(value) == storage}
    return frozenset(filter(None, found))


def way_of(error: BaseException) -> list[tuple[FrameType, Place]]:
    """Return the frames that an error came through, innermost first, and the line of each."""
    way, entry = [], error.__traceback__
    while entry is not None:
        way.append((entry.tb_frame, Place(entry.tb_frame.f_code, entry.tb_lasti)))
        entry = entry.tb_next
    return way[::-1]


def _no_graph(evidence: Evidence) -> gs501.NoGraph:
    """Return what is known of the roots of a call that have no graph."""
    asked, frames = evidence.look.asked, user_frames(sys._getframe(1))
    roots = [asked.outputs[i] for i in evidence.look.bare]
    names = names_in(frames[0], roots) if frames else [None] * len(roots)
    site = evidence.call.record.site
    bare = (_bare(*pair, site) for pair in zip(roots, names, strict=True))
    return gs501.NoGraph(evidence.call.record, tuple(bare), len(asked.outputs), script())


def _bare(root: torch.Tensor, name: str | None, site: Site | None) -> gs501.Bare:
    made = None if name is None or site is None else statements.binding(site, name)
    return gs501.Bare(
        name,
        describe(root),
        None if made is None or site is None else source.of_node(made, site.file, site.function),
        is_inference=root.is_inference(),
        is_discrete=not (root.is_floating_point() or root.is_complex()),
    )


def _unused(evidence: Evidence, which: Sequence[int]) -> gs505.Unreached:
    """Return what is known of these inputs of a call."""
    asked, frames = evidence.look.asked, user_frames(sys._getframe(1))
    outputs = names_in(frames[0], asked.outputs) if frames else ()
    names, written = evidence.state.names, _written(frames[:1])
    names.learn_variables(frames)
    inputs = (
        gs505.Input(
            i,
            written.get(id(each)),
            names.of_tensor(each) if isinstance(each, torch.nn.Parameter) else None,
            describe(each) if isinstance(each, torch.Tensor) else "GradientEdge",
        )
        for i, each in ((i, asked.inputs[i]) for i in which[:_MOST_INPUTS])
    )
    return gs505.Unreached(
        evidence.call.record,
        tuple(inputs),
        tuple(filter(None, outputs)),
        of=len(asked.inputs),
        needs_grad=bool(evidence.look.constant),
    )


class Materialized(Observer):
    """Announces GS505 where the zeros of ``materialize_grads=True``, of the first call at a line,
    enter a loss that is run backward.
    """

    def __init__(self, watch: State) -> None:
        self._watch = watch
        self._zeros: dict[Site | None, tuple[gs505.Unreached, Sequence[TensorRef]]] = {}
        """By the line that asks for gradients what it will not get, and the leaves before that."""

    def before_call(
        self, call: Call, look: Inspection, frame: FrameType | None
    ) -> Iterator[Finding]:
        """Note the zeros that a call will give, or look for those of earlier calls."""
        asked, place = look.asked, call.record.site
        if look.left:
            return
        if asked.accumulates:
            leaves = leaves_of(look.nodes) if self._zeros else []
            for facts, others in self._zeros.values():
                if any(_is_zeros(leaf, facts, others) for leaf in leaves):
                    yield gs505.finding(facts._replace(loss=call.record))
        elif asked.create_graph and place not in self._zeros and _materializes():
            which = asked._replace(allows_unused=False).unused(look.nodes)
            there = [tensor for _, tensor in parameters_in(user_frames(frame)).values()]
            there += [each for each in asked.inputs if isinstance(each, torch.Tensor)]
            facts = _unused(Evidence(self._watch, call, look, None), which)
            self._zeros[place] = facts, [*map(TensorRef, there)]


def _is_zeros(leaf: torch.Tensor, facts: gs505.Unreached, others: Sequence[TensorRef]) -> bool:
    """Return whether a leaf is zeros for an input that nothing reaches, and none of the others."""
    is_alike = type(leaf) is torch.Tensor and describe(leaf) in {i.label for i in facts.inputs}
    is_new = is_alike and all(ref() is not leaf for ref in others)
    return is_new and bool(is_zero(leaf))


def _materializes() -> bool:
    """Return whether the innermost ``autograd.grad`` makes zeros of what the engine leaves out."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _GRAD:
        frame = frame.f_back
    return frame is not None and bool(frame.f_locals.get("materialize_grads"))


def _written(frames: Sequence[FrameType]) -> dict[int, str]:
    """Return by identity how the code of a frame writes its tensors, and those in its lists and
    dicts.
    """
    found: dict[int, str] = {}
    for name, value in (pair for frame in frames for pair in variables(frame)):
        for text, each in ((name, value), *entries_of(name, value)):
            if issubclass(type(each), torch.Tensor):
                found.setdefault(id(each), text)
    return found


def script() -> str:
    """Return the file of the program that runs; empty where it is none that can be run again."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    is_module = getattr(main, "__spec__", None) is not None
    is_user = isinstance(file, str) and not is_module and classify(file) == USER
    return str(file) if is_user else ""

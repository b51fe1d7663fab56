"""Turns what a look at a graph found (freed nodes, stale tensors, donated buffers) into the certain findings."""

from __future__ import annotations

import heapq
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import Node as AutogradNode

from gradscope.collect.calls import Call
from gradscope.collect.marks import OPAQUE, Packed, Stale, token_of
from gradscope.collect.mutations import node_site
from gradscope.collect.nodes import FREED_TEXT, held, kind_of
from gradscope.collect.walk import edges_of
from gradscope.model import (
    BackwardCall,
    Edge,
    Finding,
    Graph,
    Node,
    NodeState,
    SavedState,
    SavedTensor,
    Site,
)
from gradscope.program.sites import USER, Place, owner_of, site_of, user_frames
from gradscope.program.tensors import describe, node_of, storage_of, version_of
from gradscope.program.variables import variables
from gradscope.rules import base, gs101, gs104, gs201

if TYPE_CHECKING:
    from gradscope.collect.backward import Backward
    from gradscope.collect.look import Look

INPLACE_TEXT = "modified by an inplace operation"
DETACHED_TEXT = "saved tensor that has been detached in-place"
DONATED_TEXT = "compiled with non-empty donated buffers"
_MOST_NODES_NAMED = 50


def examine(
    watch: Backward, call: Call, look: Look, record: BackwardCall, graph: Graph | None
) -> list[Finding]:
    """The finding for what the engine will raise first, if it will raise.

    The order in which the engine runs nodes decides which of several hazards it meets, so it is played through.
    """
    freed = {i for i in look.freed if look.will_run(i) and _needs_saved(look, i)}
    stale: dict[int, list[Stale]] = {}
    for i, found in look.stale:
        if look.will_run(i) and _needs_saved(look, i):
            stale.setdefault(i, []).append(found)
    donated = {
        i
        for i in look.compiled
        if look.will_run(i) and call_keeps(call, record) and _donates(look, i)
    }
    if not (freed or stale or donated):
        return []
    order = run_order(look, edges_of(look.nodes, look.index))
    first = next((i for i in order if i in freed or i in stale or i in donated), None)
    if first is None:
        return []
    for i in order[: order.index(first)]:
        token = look.tokens[i]
        if token.unseen == OPAQUE and look.will_run(i) and not call_keeps(call, record):
            token.freed_by = call  # runs, and is freed, before the engine stops; afterwards it could not be asked
    if first in freed:
        return [
            gs101.finding(
                _freed_graph(watch, call, look, record, graph, [i for i in order if i in freed])
            )
        ]
    if first in stale:
        return [gs201.finding(_stale_tensor(watch, look, record, graph, first, stale))]
    return [
        gs104.finding(
            gs104.DonatedGraph(record, tuple(_node(look, graph, i) for i in order if i in donated))
        )
    ]


def call_keeps(call: Call, record: BackwardCall) -> bool:
    """True when the call asks the engine to keep the graph."""
    return call.keep or record.create_graph


def run_order(look: Look, edges: Sequence[tuple[Edge, ...]]) -> list[int]:
    """The walked nodes in the order in which the engine runs them on one device.

    A node is ready once all nodes that feed it ran; of the ready ones the youngest runs first, AccumulateGrad before all
    (torch/csrc/autograd/engine.cpp, ``ReadyQueue``).
    """
    waiting = [0] * len(edges)
    for leaving in edges:
        for edge in leaving:
            waiting[edge.target] += 1
    ready = [(-look.tokens[i].sequence_nr, i) for i, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        _, i = heapq.heappop(ready)
        order.append(i)
        for edge in edges[i]:
            waiting[edge.target] -= 1
            if not waiting[edge.target]:
                heapq.heappush(ready, (-look.tokens[edge.target].sequence_nr, edge.target))
    return order


def _needs_saved(look: Look, i: int) -> bool:
    """True when running the node reads what it saved: always in C++, in a Python Function if its code asks for it."""
    if not look.tokens[i].is_function:
        return True
    cls = getattr(type(look.nodes[i]), "_forward_cls", None)
    return (
        cls is None
        or _mentions_saved(getattr(cls, "backward", None))
        or _mentions_saved(getattr(cls, "vjp", None))
    )


def _mentions_saved(function: Any) -> bool:
    while hasattr(function, "__wrapped__"):  # once_differentiable and other decorators
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    codes = [code] if code is not None else []
    while codes:
        code = codes.pop()
        if {"saved_tensors", "saved_variables", "maybe_clear_saved_tensors"} & {*code.co_names}:
            return True
        codes += [c for c in code.co_consts if hasattr(c, "co_names")]
    return False


def _donates(look: Look, i: int) -> bool:
    metadata = getattr(getattr(type(look.nodes[i]), "_forward_cls", None), "metadata", None)
    config = torch._functorch.config
    return bool(config.donated_buffer) and getattr(metadata, "bw_donated_idxs", None) not in (
        None,
        [],
    )


def _node(look: Look, graph: Graph | None, i: int) -> Node:
    """The i-th node as plain data."""
    token = look.tokens[i]
    if graph is not None and i < len(graph.nodes):
        drawn = graph.nodes[i]
        return drawn if drawn.site is not None else replace(drawn, site=site_of(token.place))
    node = look.nodes[i]
    state = NodeState.FREED if token.freed_by else NodeState.LIVE
    return Node(i, node.name(), state, token.sequence_nr, site=site_of(token.place))


def _freed_graph(
    watch: Backward,
    call: Call,
    look: Look,
    record: BackwardCall,
    graph: Graph | None,
    freed: list[int],
) -> gs101.FreedGraph:
    token = look.tokens[freed[0]]
    by = token.freed_by
    assert by is not None
    place = token.place
    made = _built_at(watch, look, freed[0]) if place is None else site_of(place)
    return gs101.FreedGraph(
        call=record,
        nodes=tuple(_node(look, graph, i) for i in freed[:_MOST_NODES_NAMED]),
        made=(made,) if made is not None else (),
        freed_by=_record_of(by),
        freed_same_statement=by.place is call.place and by.number > 0,
        same_root=bool(by.roots) and by.roots == call.roots,
        made_again=place is not None and place.last_sequence_nr >= by.sequence_nr,
        stepped_between=watch.steps != by.steps,
        foreseen=watch.foreseen.get(by.number),
    )


def _record_of(call: Call) -> BackwardCall | None:
    if call.number == 0:
        return None
    return call.record or BackwardCall(**call.fields)


def _built_at(watch: Backward, look: Look, i: int) -> Site | None:
    """Where a node was built whose saved tensors our hooks did not see: between what was built just before and just after."""
    token = look.tokens[i]
    before = after = None
    for other in look.tokens:
        if other.place is None:
            continue
        if other.sequence_nr < token.sequence_nr and (
            before is None or other.sequence_nr > before.sequence_nr
        ):
            before = other
        if other.sequence_nr > token.sequence_nr and (
            after is None or other.sequence_nr < after.sequence_nr
        ):
            after = other
    start = before.sequence_nr if before is not None else -1
    first = site_of(before.place) if before is not None else None
    last = site_of(after.place) if after is not None else None
    earlier, later = watch.generations.around(token.sequence_nr)
    if earlier is not None and (before is None or before.sequence_nr < earlier[0]):
        start, first = earlier[0] - 1, site_of(earlier[1])
    if later is not None and (after is None or after.sequence_nr >= later[0]):
        last = site_of(later[1])
    names = {t.sequence_nr: n.name() for t, n in zip(look.tokens, look.nodes, strict=True)}
    since = range(max(start + 1, token.sequence_nr - _MOST_NODES_NAMED), token.sequence_nr + 1)
    return node_site([names.get(number) for number in since], first, last)


def _stale_tensor(
    watch: Backward,
    look: Look,
    record: BackwardCall,
    graph: Graph | None,
    first: int,
    stale: dict[int, list[Stale]],
) -> gs201.StaleTensor:
    found = stale[first][0]
    tensor = found.tensor
    node = _node(look, graph, first)
    saved = next((s for s in node.saved if s.state is SavedState.STALE), None)
    if saved is None:
        shape = tuple(tensor.shape)
        saved = SavedTensor(
            found.name, shape, describe(tensor).split("[")[0], str(tensor.device), tensor.nbytes
        )
    token = look.tokens[first]
    saved = replace(
        saved,
        version=found.version,
        site=site_of(token.place),
        source=watch.names.of_tensor(tensor),
    )
    return gs201.StaleTensor(
        call=record,
        node=node,
        saved=saved,
        version_now=version_of(tensor),
        modified=watch.mutations.who_modified(found, token, record, _names_of(tensor, watch)),
        more=sum(map(len, stale.values())) - 1,
    )


def _names_of(tensor: torch.Tensor, watch: Backward) -> frozenset[str]:
    """The program's names for a tensor or for others that share its memory."""
    known = watch.names.of_tensor(tensor)
    found = (
        {known, known.rsplit(".", 1)[-1], f"self.{known.rsplit('.', 1)[-1]}"} if known else set()
    )
    storage = storage_of(tensor)
    for frame in user_frames(sys._getframe(1)):
        for name, value in variables(frame):
            if issubclass(type(value), torch.Tensor) and storage and storage_of(value) == storage:
                found.add(name)
    return frozenset(name for name in found if name)


def missed(call: Call, record: BackwardCall, text: str) -> Finding | None:
    """A finding about ourselves, when the engine raised what was not called before it ran."""
    finding = base.missed(text, record.site, record)
    return None if finding is None or finding.code in call.calls_first else finding


def explain_read(error: BaseException, calls: int) -> Finding | None:
    """The finding for an exception that the user's code met by reading what a node saved, after it was freed."""
    if FREED_TEXT not in str(error):
        return None
    entry, innermost = error.__traceback__, None
    while entry is not None:
        if owner_of(entry.tb_frame.f_code) == USER:
            innermost = entry
        entry = entry.tb_next
    if innermost is None:
        return None
    site = Place(innermost.tb_frame.f_code, innermost.tb_lasti).site
    for _, value in variables(innermost.tb_frame):
        token = (
            token_of(value)
            if issubclass(type(value), (torch._C._FunctionBase, AutogradNode))
            else None
        )
        if token is not None and token.freed_by is not None:
            by = _record_of(token.freed_by)
            read = gs101.FreedRead(site, value.name(), site_of(token.place), by, calls)
            return gs101.finding_of_read(read)
    return gs101.finding_of_read(gs101.FreedRead(site, after=calls))


class StaleMessage:
    """Words the engine's own error for a stale tensor, which it does not raise itself under saved-tensor hooks."""

    def __init__(self, watch: Backward) -> None:
        self._watch = watch

    def __call__(self, packed: Packed) -> str:
        """The text of the error."""
        tensor = packed.tensor
        assert tensor is not None
        output = self._output_of(packed)
        hint = (
            "Hint: the backtrace further above shows the operation that failed to compute its gradient. "
            "The variable in question was changed in there or anywhere later. Good luck!"
            if torch.is_anomaly_enabled()
            else "Hint: enable anomaly detection to find the operation that failed to compute its gradient, "
            "with torch.autograd.set_detect_anomaly(True, check_nan=False)."
        )
        return (
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"[{_engine_type(tensor)} {list(tensor.shape)}]{output} is at version {version_of(tensor)}; "
            f"expected version {packed.version} instead. {hint}"
        )

    def _output_of(self, packed: Packed) -> str:
        """``, which is output 0 of Sigmoid,`` where torch would say so."""
        node: Any = None
        number = 0
        saver = torch._C._current_autograd_node()
        if packed.original:
            assert packed.tensor is not None
            node, number = node_of(packed.tensor), packed.tensor.output_nr
        elif saver is not None:
            restored = self._restored(saver, packed)
            if restored is not None:
                node, number = restored.grad_fn, restored.output_nr
        if node is None and packed.output is None:
            return ""
        name, number = (node.name(), number) if node is not None else packed.output or ("", 0)
        return f", which is output {number} of {_engine_name(name)},"

    def _restored(self, saver: Any, packed: Packed) -> torch.Tensor | None:
        """What torch makes of a saved tensor for the node that saved it, read without the check that would fail."""
        ledger = self._watch.ledger
        ledger.checking = False
        try:
            for name, data in held(saver, kind_of(type(saver))):
                if data is packed:
                    attribute, _, place = name.partition("[")
                    read = "saved_tensors" if attribute == "tensors" else f"_saved_{attribute}"
                    value: Any = getattr(saver, read)
                    restored: torch.Tensor = value[int(place[:-1])] if place else value
                    return restored
        finally:
            ledger.checking = True
        return None


def _engine_name(name: str) -> str:
    """A node's name as the engine's messages have it: ``SinBackward0`` is Sin, ``PowBackward1`` is Pow1."""
    parts = re.fullmatch(r"(.*)Backward(\d*)", name)
    return parts[1] + parts[2].removesuffix("0") if parts else name


def _engine_type(tensor: torch.Tensor) -> str:
    """The type as the engine's message spells it, asked from the engine itself with an empty tensor."""
    with (
        torch.enable_grad(),
        torch.autograd.graph.disable_saved_tensors_hooks("gradscope asks torch for a type's name"),
    ):
        try:
            empty = torch.empty((0,), dtype=tensor.dtype, device=tensor.device)
            product = empty * torch.ones((), requires_grad=True, device=tensor.device)
            node: Any = product.grad_fn
            empty.add_(0) if empty.dtype is not torch.bool else empty.logical_not_()
            node._saved_self  # noqa: B018 - asked for the sake of its error
        except RuntimeError as error:
            found = re.search(r"inplace operation: \[(.*?) \[0\]\]", str(error))
            if found:
                return found.group(1)
    return str(tensor.type())

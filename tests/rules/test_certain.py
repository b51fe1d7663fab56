"""From plain facts to findings: the words, the places and the fix of the certain rules."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest

from gradscope.model import (
    BackwardCall,
    Certainty,
    Node,
    NodeState,
    Root,
    SavedState,
    SavedTensor,
    Severity,
    Site,
)
from gradscope.rules import gs101, gs104, gs201
from gradscope.rules.gs101 import FreedGraph
from gradscope.rules.gs201 import Modified, StaleTensor
from tests import known
from tests.rules.saying import check_wording, fix_of

MADE = Site("/home/ann/train.py", 17, 9, 17, 30, "step")
FREES = Site("/home/ann/train.py", 23, 5, 23, 30, "step")
FAILS = Site("/home/ann/train.py", 24, 5, 24, 30, "step")
STEP = Site("/home/ann/train.py", 20, 5, 20, 30, "step")


def saved(
    name: str, *shape: int, storage: int, state: SavedState = SavedState.FREED
) -> SavedTensor:
    return SavedTensor(name, shape, "f32", "cpu", 4 * prod(shape), storage, state=state)


def freed(index: int, name: str, number: int, *what: SavedTensor) -> Node:
    return Node(index, name, NodeState.FREED, number, what, MADE, freed_by=1)


TANH = freed(4, "TanhBackward0", 7, saved("result", 32, 256, storage=1))
MAT2 = replace(saved("mat2", 100, 256, storage=3), is_parameter=True)
ADDMM = freed(5, "AddmmBackward0", 6, saved("mat1", 32, 100, storage=2), MAT2)
FIRST = BackwardCall(1, "backward", FREES, (Root(0, "loss_a"),))
SECOND = BackwardCall(2, "backward", FAILS, (Root(9, "loss_b"),), graph=6)
SIBLINGS = FreedGraph(SECOND, (TANH, ADDMM), (MADE,), FIRST)


def freed_fix(facts: FreedGraph) -> tuple[str, str]:
    fix = fix_of(gs101.finding(facts))
    return fix.kind, fix.message


def test_a_freed_graph_is_told_in_full() -> None:
    finding = gs101.finding(SIBLINGS)
    check_wording(finding)
    judged = (finding.code, finding.severity, finding.certainty)
    assert judged == ("GS101", Severity.ERROR, Certainty.CERTAIN)
    assert finding.message == "backward through a freed graph"
    assert finding.label == "needs 3 saved tensors of 2 nodes, already freed"
    assert (finding.site, finding.backward_call, finding.graph) == (FAILS, 2, 6)
    assert [(r.role, r.site) for r in finding.related] == [("created", MADE), ("freed_by", FREES)]
    assert [related.message for related in finding.related] == [
        "the shared part was built here: TanhBackward0, AddmmBackward0, 44.5 KiB saved",
        "freed by backward call 1, which ran without retain_graph=True",
    ]
    assert finding.nodes == ("TanhBackward0", "AddmmBackward0")
    assert finding.saved == ("result f32[32, 256]", "mat1 f32[32, 100]", "mat2 f32[100, 256]")
    assert finding.bytes == 32 * 256 * 4 + 32 * 100 * 4, "a parameter is not activation memory"
    assert finding.graph_nodes == (4, 5)


def test_only_what_is_freed_is_counted() -> None:
    half = replace(TANH, saved=(*TANH.saved, saved("self", 8, storage=9, state=SavedState.SAVED)))
    assert (
        gs101.finding(SIBLINGS._replace(nodes=(half,))).label
        == "needs 1 saved tensor of 1 node, already freed"
    )


def test_where_torch_shows_no_saved_tensors_none_are_invented() -> None:
    finding = gs101.finding(SIBLINGS._replace(nodes=(replace(TANH, saved=()),)))
    check_wording(finding)
    assert finding.label == "needs the saved tensors of 1 node, already freed"
    assert finding.related[0].message == "the shared part was built here: TanhBackward0"


def test_the_line_where_the_engine_stops_is_kept_apart_from_the_one_to_blame() -> None:
    elsewhere = Site("/home/ann/model.py", 15)
    finding = gs101.finding(SIBLINGS._replace(nodes=(replace(TANH, site=elsewhere), ADDMM)))
    assert [(r.role, r.site) for r in finding.related][-1] == ("failing_node", elsewhere)


def test_sibling_losses_are_added() -> None:
    both = "add the losses of the calls at train.py:23 and train.py:24 and call backward once, or"
    cut = "detach() what train.py:17 builds in the one that should not train it"
    assert freed_fix(SIBLINGS) == ("sum_losses", f"{both} {cut}")
    unknown = freed_fix(SIBLINGS._replace(made=()))
    assert unknown[1].startswith(f"{both} detach() what is shared")


def test_a_sibling_that_a_step_parts_is_detached() -> None:
    kind, message = freed_fix(SIBLINGS._replace(stepped_between=True))
    assert kind == "detach"
    assert "what train.py:17 builds" in message
    assert "train.py:24" in message


def test_a_carried_state_is_detached_never_retained() -> None:
    facts = SIBLINGS._replace(
        freed_by=replace(FIRST, site=FAILS), freed_same_statement=True, made_again=True
    )
    assert freed_fix(facts)[0] == "detach"
    assert freed_fix(facts._replace(freed_same_statement=False))[0] == "detach"
    assert freed_fix(facts._replace(call=replace(SECOND, retain_graph=True)))[0] == "detach"
    alone = facts._replace(trains_anew=False)
    assert freed_fix(alone)[0] == "recompute"
    stepped = alone._replace(made_again=False, freed_same_statement=False, stepped_between=True)
    assert freed_fix(stepped)[0] == "recompute"
    related = gs101.finding(facts).related
    assert related[0].message.startswith("the freed part was built here: ")
    assert related[1].message.startswith(
        "freed by backward call 1, an earlier run of this line, which ran"
    )


def test_what_is_made_once_is_made_again() -> None:
    facts = SIBLINGS._replace(freed_by=replace(FIRST, site=FAILS), freed_same_statement=True)
    kind, message = freed_fix(facts)
    assert kind == "recompute"
    assert "train.py:17" in message
    assert (
        gs101.finding(facts).related[0].message.startswith("the freed part was built here, once: ")
    )


def test_retain_graph_on_the_call_that_frees_not_on_the_last() -> None:
    facts = SIBLINGS._replace(call=replace(SECOND, retain_graph=True), freed_same_statement=True)
    kind, message = freed_fix(facts)
    assert kind == "retain_graph"
    assert message.startswith("have the call at train.py:23 keep the graph")


def test_a_probe_keeps_the_graph() -> None:
    probe = replace(FIRST, kind="grad", inputs=("w",))
    kind, message = freed_fix(SIBLINGS._replace(freed_by=probe))
    assert kind == "retain_graph"
    assert "train.py:23" in message
    assert (
        "freed by autograd.grad call 1"
        in gs101.finding(SIBLINGS._replace(freed_by=probe)).related[1].message
    )


def test_a_failing_autograd_grad_is_named_so_and_cannot_be_summed() -> None:
    facts = SIBLINGS._replace(call=replace(SECOND, kind="grad", inputs=("x",)))
    assert gs101.finding(facts).message == "autograd.grad through a freed graph"
    assert freed_fix(facts)[0] == "retain_graph"


def test_the_same_loss_twice_is_computed_again_or_kept_where_each_call_asks_for_a_part() -> None:
    assert freed_fix(SIBLINGS._replace(same_root=True))[0] == "recompute"
    assert freed_fix(SIBLINGS._replace(same_root=True, freed_same_statement=True))[0] == "recompute"
    partial = replace(FIRST, inputs=("w2",))
    assert freed_fix(SIBLINGS._replace(same_root=True, freed_by=partial))[0] == "retain_graph"


def test_calls_nested_in_one_other_are_a_reentrant_checkpoint() -> None:
    facts = SIBLINGS._replace(call=replace(SECOND, parent=1), freed_by=replace(FIRST, parent=1))
    kind, message = freed_fix(facts)
    assert kind == "reorder"
    assert "use_reentrant=False" in message


def test_a_graph_freed_before_the_watch() -> None:
    facts = SIBLINGS._replace(freed_by=None)
    assert freed_fix(facts)[0] == "recompute"
    assert gs101.finding(facts).related[-1].site is None


def test_a_read_of_a_freed_saved_tensor_is_explained_after_the_fact() -> None:
    finding = gs101.finding_of_read(FAILS, 1, "MulBackward0", MADE, FIRST)
    check_wording(finding)
    told = (finding.site, finding.certainty, finding.backward_call)
    assert told == (FAILS, Certainty.OBSERVED, 1)
    assert [r.role for r in finding.related] == ["created", "freed_by"]
    check_wording(gs101.finding_of_read(None, 0))


WEIGHT = replace(
    saved("mat2", 256, 1, storage=2, state=SavedState.STALE),
    version=3,
    is_parameter=True,
    source="critic.weight",
)
STALE_NODE = Node(1, "AddmmBackward0", NodeState.STALE, 5, (WEIGHT,), MADE)
STALE = StaleTensor(SECOND, STALE_NODE, WEIGHT, 4, Modified(STEP, STEP))


def test_a_step_is_named_with_the_parameter() -> None:
    finding = gs201.finding(STALE._replace(modified=Modified(STEP, STEP, by_step=True)))
    assert finding.label == "needs `critic.weight` at version 3, it is at version 4"
    assert [(r.role, r.site) for r in finding.related] == [("created", MADE), ("modified_by", STEP)]
    assert finding.related[1].message == "the optimizer's step modified `critic.weight`"
    assert fix_of(finding).kind == "reorder"
    assert "train.py:20" in fix_of(finding).message


def test_an_in_place_operation_is_named_by_its_line() -> None:
    unnamed = replace(WEIGHT, source=None, is_parameter=False)
    finding = gs201.finding(STALE._replace(saved=unnamed, more=2))
    check_wording(finding)
    expected = "needs `mat2 f32[256, 1]` of AddmmBackward0 at version 3, it is at version 4, and 2 more tensors"
    assert finding.label == expected
    assert finding.bytes == 1024
    assert [(r.role, r.site) for r in finding.related] == [("created", MADE), ("modified_by", STEP)]
    assert known(finding.fix).kind == "clone"


@pytest.mark.parametrize(
    ("first", "last", "sites"),
    [(MADE, STEP, [MADE, STEP]), (None, STEP, [STEP]), (MADE, None, [MADE]), (None, None, [None])],
)
def test_what_is_not_known_exactly_is_said_so(
    first: Site | None, last: Site | None, sites: list[Site | None]
) -> None:
    finding = gs201.finding(STALE._replace(modified=Modified(first, last)))
    check_wording(finding)
    modified = [r for r in finding.related if r.role == "modified_by"]
    assert [r.site for r in modified] == sites
    assert not any("here" in r.message.split() for r in modified)
    assert known(finding.fix).kind == "clone"


COMPILED = Node(2, "CompiledFunctionBackward", NodeState.LIVE, 1, (saved("", 64, storage=1),), MADE)


def test_a_compiled_graph_that_must_not_be_kept() -> None:
    finding = gs104.finding(replace(SECOND, retain_graph=True), (COMPILED, COMPILED))
    assert finding.message == "retain_graph=True on a compiled graph with donated buffers"
    assert [(r.role, r.site) for r in finding.related] == [("created", MADE)]
    fix = fix_of(finding)
    assert fix.kind == "donated_buffer_off"
    assert "256 B" in fix.message
    assert fix.message.startswith("remove retain_graph=True, or set ")


def test_a_second_derivative_needs_an_uncompiled_function() -> None:
    call = replace(SECOND, retain_graph=True, create_graph=True)
    finding = gs104.finding(call, (COMPILED,))
    check_wording(finding)
    assert finding.message == "create_graph=True on a compiled graph with donated buffers"
    assert known(finding.fix).kind == "eager"

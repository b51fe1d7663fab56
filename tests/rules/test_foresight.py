"""The rules that predict: their words, the choice of the fix, and the examples of their pages run under a watch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradscope.detect.foresight.schedule import Schedule
from gradscope.model import (
    BackwardCall,
    Certainty,
    Finding,
    Node,
    NodeState,
    Root,
    SavedTensor,
    Severity,
    Site,
)
from gradscope.rules import gs102, gs103, gs202
from gradscope.rules.base import Rule, first_few
from gradscope.rules.gs102 import Cut, Link, Loss, Roles, SharedGraph
from gradscope.rules.gs103 import ForwardOnFreed
from gradscope.rules.gs202 import By, StaleSoon
from tests import examples, known
from tests.rules.saying import check_wording, findings_of, fix_of

MADE = Site("/home/ann/train.py", 17, 9, 17, 30)
LINK = Site("/home/ann/train.py", 18, 9, 18, 30)
FREES = Site("/home/ann/train.py", 23, 5, 23, 30)
READ = Site("/home/ann/train.py", 24, 12, 24, 13)
FAILS = Site("/home/ann/train.py", 25, 5, 25, 30)

RESULT = SavedTensor("result", (32, 256), "f32", "cpu", 32768, 1)
TANH = Node(4, "TanhBackward0", NodeState.LIVE, 7, (RESULT,), MADE)
CALL = BackwardCall(1, "backward", FREES, (Root(0, "loss_a"),), saved_bytes=32768)
ROLES = Roles(second=Loss("loss_b", FAILS))
SIBLING = SharedGraph(CALL, "loss_b", (TANH,), (MADE,), READ, FAILS, LINK, roles=ROLES)
CARRIED = SIBLING._replace(holder="h", next_call=FREES, again=True, carried=True)


def test_a_prediction_names_the_five_things() -> None:
    finding = gs102.finding(SIBLING)
    check_wording(finding)
    judged = (finding.code, finding.severity, finding.certainty)
    assert judged == ("GS102", Severity.WARNING, Certainty.PREDICTED)
    assert (finding.site, finding.backward_call, finding.bytes) == (FREES, 1, 32768)
    assert finding.message == "backward call 1 frees a graph that a later backward call needs"
    assert finding.label == "will free 1 node that `loss_b` leads to"
    places = {"created": MADE, "freed_by": FREES, "held_by": LINK, "next_read": READ}
    told = [(r.role, r.site) for r in finding.related]
    assert told == [*places.items(), ("failing_node", FAILS)]


def test_a_place_is_not_told_twice() -> None:
    roles = [r.role for r in gs102.finding(SIBLING._replace(link=MADE, next_call=READ)).related]
    assert roles == ["created", "freed_by", "next_read"]


def test_further_holders_are_named() -> None:
    finding = gs102.finding(CARRIED._replace(others=(("c", LINK), ("cache", None))))
    check_wording(finding)
    assert [r.message for r in finding.related if r.role == "held_by"] == [
        "`h` holds it from here on",
        "`c` holds it from here on",
    ]


PROBE = replace(CALL, kind="grad", inputs=("w",))
FIXES = [
    (SIBLING, "sum_losses", "(loss_a + loss_b).backward()"),
    (SIBLING._replace(stepped_between=True), "detach", "where this loss takes it"),
    (SIBLING._replace(call=PROBE), "retain_graph", "keeps 32 KiB"),
    (
        SIBLING._replace(call=replace(CALL, inputs=("w",)), same_root=True),
        "retain_graph",
        "retain_graph=True",
    ),
    (SIBLING._replace(same_root=True), "recompute", "forward pass again"),
    (CARRIED, "detach", "detach() `h` after this call"),
    (CARRIED._replace(computed=True), "detach", "detach() `h`"),
    (CARRIED._replace(carried=False, computed=True), "retain_graph", "in every run but the last"),
    (SIBLING._replace(computed=True), "retain_graph", "keep the graph, or add"),
    (CARRIED._replace(averaged=True), "no_grad", "torch.no_grad()"),
    (
        CARRIED._replace(accumulated=True, same_root=True, roles=Roles(total=True)),
        "item",
        ".item()",
    ),
    (CARRIED._replace(accumulated=True, same_root=True), "recompute", "set `h` to zero"),
    (CARRIED._replace(carried=False), "recompute", "train.py:17"),
    (CARRIED._replace(carried=False, trained=False), "detach", "where it is stored"),
    (CARRIED._replace(elements="losses"), "sum_losses", "sum(losses).backward()"),
]


@pytest.mark.parametrize(("facts", "kind", "words"), FIXES)
def test_the_fix_follows_from_the_facts(facts: SharedGraph, kind: str, words: str) -> None:
    fix = fix_of(gs102.finding(facts))
    assert fix.kind == kind
    assert words in fix.message


def test_what_keeping_the_graph_costs_is_told_where_that_is_proposed() -> None:
    for facts, price in (
        (SIBLING, "(keeps 32 KiB)"),
        (CARRIED, "32 KiB more with each iteration)"),
    ):
        kept = gs102.finding(facts).alternatives[-1]
        assert kept.kind == "retain_graph"
        assert kept.message.endswith(price)


FIRST = Loss("loss_a", FREES, ("opt_d",))
SECOND = Loss("loss_b", FAILS, ("opt_g",))
LINKED = Link("fake", Cut.FIRST, ("g.weight",), lost_first=("g.weight",))
KNOWN = Roles(("g.weight",), FIRST, SECOND, known=True, links=(LINKED,))


def linked(*cuts: Cut, same_optimizer: bool = False) -> SharedGraph:
    links = tuple(LINKED._replace(cut=cut) for cut in cuts)
    return SIBLING._replace(roles=KNOWN._replace(links=links, same_optimizer=same_optimizer))


ORDERS = {
    "rows of one result": (
        CARRIED._replace(carried=False, call=PROBE),
        "retain_graph recompute",
    ),
    "a gradient that is asked for first": (
        SIBLING._replace(call=PROBE),
        "retain_graph create_graph recompute",
    ),
    "a loop over losses": (CARRIED._replace(elements="losses"), "sum_losses retain_graph"),
    "the same loss": (SIBLING._replace(same_root=True), "recompute retain_graph"),
    "a state": (CARRIED, "detach retain_graph"),
    "an average": (CARRIED._replace(averaged=True), "no_grad detach"),
    "made once, trained": (CARRIED._replace(carried=False), "recompute detach no_grad"),
    "made once, a constant": (
        CARRIED._replace(carried=False, roles=Roles(constant="no step has it")),
        "detach no_grad recompute",
    ),
    "a cache": (CARRIED._replace(carried=False, holder="<cached w>"), "reorder retain_graph"),
    "nothing known": (SIBLING, "sum_losses detach recompute retain_graph"),
    "nothing known, a step between": (
        SIBLING._replace(stepped_between=True),
        "detach sum_losses recompute retain_graph",
    ),
    "the first may do without": (linked(Cut.FIRST), "detach recompute sum_losses retain_graph"),
    "the second may do without": (linked(Cut.SECOND), "detach recompute sum_losses retain_graph"),
    "each may do without one": (
        linked(Cut.FIRST, Cut.SECOND),
        "detach recompute sum_losses retain_graph",
    ),
    "both may do without": (linked(Cut.NEITHER), "detach no_grad recompute sum_losses"),
    "none may do without": (linked(Cut.BOTH), "sum_losses recompute retain_graph"),
    "one optimizer": (
        linked(Cut.BOTH, same_optimizer=True),
        "sum_losses recompute retain_graph",
    ),
}


@pytest.mark.parametrize(("facts", "kinds"), ORDERS.values(), ids=ORDERS)
def test_who_is_trained_decides_what_comes_first(facts: SharedGraph, kinds: str) -> None:
    fixes = first_few(gs102._fixes(facts))
    assert " ".join(fix.kind for fix in fixes) == kinds
    assert gs102.finding(facts).fixes == fixes
    assert not any(fix.edits for fix in fixes)
    check_wording(gs102.finding(facts))


def test_a_cut_says_where_and_what_it_means() -> None:
    fix = known(gs102.finding(linked(Cut.FIRST)).fix)
    assert fix.message == "use `fake.detach()` in `loss_a` (line 23)"
    assert fix.effects == (
        "`g.weight` would get no gradient from `loss_a` (line 23)",
        "`g.weight` would get gradient from `loss_b` (line 25) as before",
    )
    assert fix.reason == "`opt_d` steps with this loss, and only `opt_g` has `g.weight`"


def test_of_several_fixes_the_first_is_proposed() -> None:
    finding = gs102.finding(CARRIED)
    assert [fix.kind for fix in finding.fixes] == ["detach", "retain_graph"]
    assert finding.fixes == tuple(gs102._fixes(CARRIED))
    assert finding.alternatives == finding.fixes[1:]
    assert not any(fix.edits for fix in finding.fixes)


def told_of_a_step(facts: StaleSoon) -> Finding:
    finding = gs202.finding(facts)
    check_wording(finding)
    assert (finding.code, finding.site, finding.backward_call) == ("GS202", LINK, 3)
    places = {"created": MADE, "modified_by": LINK, "next_read": FAILS}
    assert [(r.role, r.site) for r in finding.related] == [*places.items()]
    return finding


def test_a_step_is_told_with_the_parameters() -> None:
    facts = StaleSoon(
        LINK, "actor_loss", ("critic.weight",), ("AddmmBackward0",), (MADE,), FAILS, FAILS, 3
    )
    finding = told_of_a_step(facts)
    assert "`critic.weight`" in finding.related[1].message
    assert known(finding.fix).kind == "reorder"
    assert [r.role for r in gs202.finding(facts._replace(read=READ)).related][-1] == "failing_node"


def test_an_operation_in_place_is_told_with_its_tensor() -> None:
    facts = StaleSoon(
        LINK, "loss", ("queue",), ("MmBackward0",), (MADE,), FAILS, FAILS, 3, By.OPERATION
    )
    finding = told_of_a_step(facts)
    assert [(fix.kind, fix.edits) for fix in finding.fixes] == [("clone", ()), ("reorder", ())]
    assert finding.fixes[0].message.startswith("save a clone() at train.py:17, or ")
    assert "`queue`" in finding.label
    assert "optimizer" not in finding.message


STALE = StaleSoon(LINK, "loss", ("w",), ("MmBackward0",), (MADE,), READ, FAILS, 3, By.OPERATION)
NEEDS = [
    (STALE, {}, "clone reorder"),
    (STALE._replace(tensors=("slow.weight",)), {}, "reorder clone"),
    (STALE._replace(tensors=("slow.weight",)), {"computed": True}, "clone reorder"),
    (STALE._replace(by=By.DATA, tensors=("slow.weight",)), {}, "clone reorder"),
    (STALE, {"trained": True}, "reorder"),
    (STALE, {"carried": True, "again": True}, "detach reorder"),
    (STALE._replace(by=By.STEP), {}, "reorder recompute"),
    (STALE._replace(by=By.STEP), {"carried": True, "again": True}, "detach reorder"),
    (STALE._replace(by=By.STEP), {"again": True}, "recompute detach reorder"),
]


@pytest.mark.parametrize(("facts", "need", "kinds"), NEEDS)
def test_what_changed_it_decides_what_comes_first(
    facts: StaleSoon, need: dict[str, Any], kinds: str
) -> None:
    finding = gs202.finding(facts._replace(**need))
    check_wording(finding)
    assert " ".join(fix.kind for fix in finding.fixes) == kinds
    assert not any(fix.edits for fix in finding.fixes)


BUILT_ON = ForwardOnFreed(READ, "scores", ("TanhBackward0",), (MADE,), CALL, FAILS, 3)
FREED_FIXES = [
    (BUILT_ON, "sum_losses", "add this loss"),
    (BUILT_ON._replace(again=True), "recompute", "compute `scores` again"),
    (BUILT_ON._replace(again=True, carried=True), "detach", "detach() `scores` after"),
]


@pytest.mark.parametrize(("facts", "kind", "words"), FREED_FIXES)
def test_what_is_built_on_a_freed_graph_is_told_with_its_fix(
    facts: ForwardOnFreed, kind: str, words: str
) -> None:
    finding = gs103.finding(facts)
    assert (finding.code, finding.site, finding.backward_call) == ("GS103", READ, 3)
    assert [r.role for r in finding.related] == ["created", "freed_by", "next_read"]
    assert "`scores`" in finding.label
    assert fix_of(finding).kind == kind
    assert words in fix_of(finding).message


def run(source: str, folder: Path) -> list[str]:
    findings, error = findings_of(source, folder)
    assert not error or "second time" in error or "inplace operation" in error
    return [f.code for f in findings if f.severity is not Severity.ADVICE]


def test_a_write_through_data_is_told_with_what_it_does() -> None:
    facts = StaleSoon(LINK, "loss", ("w",), ("MulBackward0",), (MADE,), READ, FAILS, 3, By.DATA)
    finding = gs202.finding(facts._replace(trained=True))
    assert "wrong gradient, without an error" in finding.message
    assert "no version counter moved" in finding.related[1].message
    roles = [r.role for r in finding.related]
    assert roles == ["created", "modified_by", "next_read", "failing_node"]
    assert "fail" not in finding.related[-1].message
    fix = fix_of(finding)
    assert (fix.kind, fix.edits) == ("reorder", ())
    assert "after the backward call at" in fix.message


@pytest.mark.parametrize(
    ("rule", "later"), [(gs102.RULE, "GS101"), (gs103.RULE, "GS101"), (gs202.RULE, "GS201")]
)
def test_the_bad_example_is_told_first_and_the_good_one_is_silent(
    rule: Rule, later: str, tmp_path: Path
) -> None:
    assert run(examples.bad(rule), tmp_path) == [rule.code, later]
    assert run(examples.good(rule), tmp_path) == []


def test_looks_become_rare() -> None:
    schedule = Schedule()
    due = [n for n in range(1, 70) if schedule.is_due("a loop")]
    assert due == [1, 2, 3, 4, 8, 16, 32, 64]
    assert schedule.is_due("another loop")


def test_looks_have_a_budget_that_no_slow_machine_spends(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = now = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: passed)
    monkeypatch.setattr("time.thread_time", lambda: now)
    schedule = Schedule()
    for _ in range(23):
        with schedule:
            now += 0.1
    assert schedule.is_due("a loop")
    with schedule:
        now += 0.1
    assert not schedule.is_due("a loop")
    assert schedule.is_due("a loop that no look has met")
    passed += 1_000  # of which one in a hundred is for looks
    assert schedule.is_due("a loop")
    for _ in range(56):
        with schedule:
            now += 1.0
    assert not schedule.is_due("one more loop")

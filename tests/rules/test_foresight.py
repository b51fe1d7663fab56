"""The rules that predict: their words, the choice of the fix, and the examples of their pages run under a watch."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from gradscope.detect.lookahead import Prediction, Schedule
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
from gradscope.render import wording
from gradscope.rules import gs102, gs103, gs202
from gradscope.rules.base import Rule
from gradscope.rules.gs102 import SharedGraph
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
SIBLING = SharedGraph(CALL, "loss_b", (TANH,), (MADE,), READ, FAILS, LINK)
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
SITUATIONS = {
    "nested": (SIBLING._replace(call=replace(CALL, parent=1)), "reorder", "use_reentrant=False"),
    "a running total": (
        CARRIED._replace(accumulated=True, same_root=True),
        "item",
        "add its value to `h` with item()",
    ),
    "rows of one result": (
        CARRIED._replace(carried=False, call=PROBE),
        "retain_graph",
        "each run of the call at train.py:23 but the last",
    ),
    "a gradient that is asked for first": (
        SIBLING._replace(call=PROBE),
        "retain_graph",
        "keep the graph in the call at train.py:23, as the call at train.py:25 runs it once more",
    ),
    "a part that is asked for first": (
        SIBLING._replace(call=replace(CALL, inputs=("w",)), same_root=True),
        "retain_graph",
        "the call at train.py:25 runs it once more",
    ),
    "computed": (SIBLING._replace(computed=True), "retain_graph", "the last call that needs it"),
    "computed in a loop": (
        CARRIED._replace(carried=False, computed=True),
        "retain_graph",
        "the last call that needs it",
    ),
    "a loop over losses": (
        CARRIED._replace(elements="losses"),
        "sum_losses",
        "add the elements of `losses`",
    ),
    "the same loss": (SIBLING._replace(same_root=True), "recompute", "forward pass again"),
    "a state": (CARRIED, "detach", "detach() `h`, carried from one iteration into the next, after"),
    "a state, whatever is computed": (CARRIED._replace(computed=True), "detach", "detach() `h`"),
    "a state of a library's loop": (
        CARRIED._replace(call=replace(CALL, driven=True)),
        "detach",
        "where it is stored",
    ),
    "an average": (CARRIED._replace(averaged=True), "no_grad", "under torch.no_grad()"),
    "a cache": (CARRIED._replace(carried=False, holder="<cached w>"), "reorder", "cached()"),
    "made once": (CARRIED._replace(carried=False), "recompute", "compute `h` at train.py:17 again"),
    "two losses": (SIBLING, "sum_losses", "add the losses of the calls at train.py:23 and"),
    "two losses, a step between": (
        SIBLING._replace(parted=True),
        "detach",
        "detach() what train.py:17 builds in the loss that should not train it, or run",
    ),
}


@pytest.mark.parametrize(("facts", "kind", "words"), SITUATIONS.values(), ids=SITUATIONS)
def test_the_situation_has_one_sentence_that_names_the_lines(
    facts: SharedGraph, kind: str, words: str
) -> None:
    finding = gs102.finding(facts)
    fix = fix_of(finding)
    assert fix.kind == kind
    assert words in fix.message
    assert finding.fixes == (fix,)
    assert (fix.edits, fix.effects, fix.reason) == ((), (), "")


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
    assert [(fix.kind, fix.edits) for fix in finding.fixes] == [("clone", ())]
    reads = "let the forward pass at train.py:17 read a clone() of `queue`, or write to it at"
    assert finding.fixes[0].message == f"{reads} train.py:18 after the backward call at train.py:25"
    assert "`queue`" in finding.label
    assert "optimizer" not in finding.message


def test_what_the_title_says_of_a_change_no_note_repeats() -> None:
    gate = StaleSoon(LINK, "gate", ("gate",), ("SigmoidBackward0",), (MADE,), READ, FAILS, 3)
    found = gs202.finding(gate._replace(by=By.OPERATION, computed=True))
    assert found.label == "`gate` was saved by sigmoid (line 17) and changed in place here"
    said = [message for message, _ in wording.notes(found)]
    assert not [each for each in said if "modified" in each or "the saved tensor" in each]
    unnamed = gate._replace(by=By.DATA, tensors=("a buffer",), nodes=("NativeLayerNormBackward0",))
    found = gs202.finding(unnamed._replace(made=()))
    assert found.label == "a buffer was saved by native_layer_norm and changed in place here"
    assert any("which torch does not see" in message for message, _ in wording.notes(found))


STALE = StaleSoon(LINK, "loss", ("w",), ("MmBackward0",), (MADE,), READ, FAILS, 3, By.OPERATION)
CHANGED = {
    "a table": (STALE, "clone"),
    "an average, whatever its name": (STALE._replace(tensors=("slow.weight",)), "clone"),
    "an activation": (STALE._replace(computed=True), "clone"),
    "an activation that goes on": (
        STALE._replace(computed=True, carried=True, again=True),
        "clone",
    ),
    "a parameter": (STALE._replace(trained=True), "reorder"),
    "a parameter, of an older graph": (
        STALE._replace(trained=True, carried=True, again=True),
        "detach",
    ),
    "a table through .data": (STALE._replace(by=By.DATA), "clone"),
    "a step": (STALE._replace(by=By.STEP), "reorder"),
    "a step, and a state": (STALE._replace(by=By.STEP, carried=True, again=True), "detach"),
    "a step, and what was made once": (STALE._replace(by=By.STEP, again=True), "recompute"),
}


@pytest.mark.parametrize(("facts", "kind"), CHANGED.values(), ids=CHANGED)
def test_what_changed_it_decides_what_is_said(facts: StaleSoon, kind: str) -> None:
    finding = gs202.finding(facts)
    fix = fix_of(finding)
    assert fix.kind == kind
    assert finding.fixes == (fix,)
    assert (fix.edits, fix.effects, fix.reason) == ((), (), "")


BUILT_ON = ForwardOnFreed(READ, "scores", ("TanhBackward0",), (MADE,), CALL, FAILS, 3)
FREED_FIXES = [
    (BUILT_ON, "sum_losses", "add the losses of the calls at train.py:23 and train.py:25"),
    (BUILT_ON._replace(again=True), "recompute", "compute `scores` at train.py:17 again"),
    (BUILT_ON._replace(again=True, carried=True), "detach", "detach() `scores`, carried"),
    (
        BUILT_ON._replace(freed_by=PROBE),
        "retain_graph",
        "keep the graph in the call at train.py:23",
    ),
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
    assert "silently compute a wrong gradient" in finding.message
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


TWO_LOSSES = """
    import torch
    net, head = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.1)
    z = torch.tanh(net(torch.randn(2, 3)))
    first, second = z.exp().sum(), z.pow(2).sum()
    first.backward()
    {between}
    second.backward()
"""


@pytest.mark.parametrize(
    ("between", "kind"),
    [
        ("pass", "sum_losses"),
        ("optimizer.zero_grad()", "detach"),
        ("net.zero_grad()", "detach"),
        ("net.weight.grad = None", "detach"),
        ("optimizer.step()", "detach"),
    ],
)
def test_losses_that_a_step_or_a_reset_parts_are_not_added(
    between: str, kind: str, tmp_path: Path
) -> None:
    findings, error = findings_of(TWO_LOSSES.format(between=between), tmp_path)
    assert "second time" in error
    assert [(f.code, fix_of(f).kind) for f in findings] == [("GS102", kind), ("GS101", kind)]


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


def test_free_looks_read_a_bounded_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they take: a program whose code is long pays for few of them."""
    monkeypatch.setattr("time.perf_counter", lambda: 0.0)
    schedule = Schedule()
    for _ in range(3):
        assert schedule.is_due("a loop")
        schedule.read(Prediction(steps=40_000))
    assert not schedule.is_due("another loop")


def test_what_was_read_in_vain_is_read_for_few_rounds_again() -> None:
    schedule = Schedule()
    for kind, steps in (("short", 500), ("long", 5_000)):
        assert schedule.is_due(kind)
        assert schedule.rounds == math.inf
        schedule.read(Prediction(steps=steps))
    assert schedule.is_due("short")
    assert schedule.rounds == math.inf
    assert schedule.is_due("long")
    assert schedule.rounds < 10

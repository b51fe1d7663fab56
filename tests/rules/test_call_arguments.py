"""GS501 and GS505: what a call asks for and cannot get is said first, as the engine says it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gradscope
from gradscope.model import BackwardCall, Certainty, Finding, Severity, Site
from gradscope.rules import gs501, gs505
from gradscope.rules.base import Rule
from tests import examples
from tests.rules.saying import check_wording, findings_of, fix_of

RULES = (gs501.RULE, gs505.RULE)
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
CALL = BackwardCall(3, "grad", Site("train.py", 20))

START = """
    import torch
    from torch.autograd.graph import get_gradient_edge
    w, v = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    data = torch.ones(3)
    """


def found_in(source: str, folder: Path) -> tuple[list[Finding], str]:
    return findings_of(textwrap.dedent(START) + textwrap.dedent(source), folder)


@each_rule
def test_the_bad_example_has_this_finding_and_no_other(rule: Rule, tmp_path: Path) -> None:
    findings, error = findings_of(examples.bad(rule), tmp_path)
    assert [(f.code, f.certainty, f.missed) for f in findings] == [
        (rule.code, Certainty.CERTAIN, False)
    ]
    assert error


@each_rule
def test_the_good_example_has_none(rule: Rule, tmp_path: Path) -> None:
    assert findings_of(examples.good(rule), tmp_path) == ([], "")


NO_GRAPH = {
    "no_grad": "with torch.no_grad():\n    loss = w.sum()\nloss.backward()",
    "inference": "with torch.inference_mode():\n    loss = w.sum()\nloss.backward()",
    "detached": "loss = w.detach().sum()\nloss.backward()",
    "discrete": "loss = w.argmax()\nloss.backward()",
    "autograd.backward": "loss = data.sum()\ntorch.autograd.backward([w.sum(), loss])",
    "autograd.grad": "loss = data.sum()\ntorch.autograd.grad(loss, [w])",
    "of what does not require grad": "loss = data.sum()\ntorch.autograd.grad(loss, [data])",
    "allow_unused": "loss = data.sum()\ntorch.autograd.grad(loss, [w], allow_unused=True)",
    "inputs": "loss = data.sum()\nloss.backward(inputs=[w])",
    "not scalar": "loss = data * 1\nloss.backward()",
    "batched": "loss = data * 1\ntorch.autograd.grad(loss, [w], torch.eye(3), is_grads_batched=True)",
    "under vmap": """
        torch.func.vmap(lambda x: torch.autograd.grad((loss := (w * x).sum()), [w])[0])(data)
    """,
}


@pytest.mark.parametrize("program", NO_GRAPH.values(), ids=NO_GRAPH)
def test_a_start_without_a_graph_is_said_as_the_engine_raises(program: str, tmp_path: Path) -> None:
    findings, error = found_in(program, tmp_path)
    assert "does not require grad and does not have a grad_fn" in error
    (found,) = findings
    assert (found.code, found.severity, found.certainty) == (
        "GS501",
        Severity.ERROR,
        Certainty.CERTAIN,
    )
    check_wording(found)
    assert "`loss`" in found.message


UNUSED = {
    "another leaf": ("torch.autograd.grad(w.sum(), [w, v])", (1,)),
    "a view made later": ("part = w[:2]\ntorch.autograd.grad(w.sum(), [part])", (0,)),
    "another result of one node": (
        "a, b, c = w.unbind()\ntorch.autograd.grad(a + c, [a, b, c])",
        (1,),
    ),
    "an edge": ("torch.autograd.grad(w.sum(), [get_gradient_edge(v), w])", (0,)),
    "of a leaf": ("torch.autograd.grad(w, [w, v], torch.ones(3))", (1,)),
    "of a freed graph": (
        "loss = w.exp().sum()\nloss.backward()\ntorch.autograd.grad(loss, [v])",
        (0,),
    ),
    "changed in place": (
        "h = w * 2\nloss = h.sum()\nh.add_(1)\ntorch.autograd.grad(loss, h)",
        (0,),
    ),
    "batched": ("torch.autograd.grad(w * 2, [v], torch.eye(3), is_grads_batched=True)", (0,)),
    "no grad": ("torch.autograd.grad((w * data).sum(), [w, data])", (1,)),
    "no grad, allowed": ("torch.autograd.grad(w.sum(), [data], allow_unused=True)", (0,)),
}


@pytest.mark.parametrize(("program", "which"), UNUSED.values(), ids=UNUSED)
def test_inputs_that_nothing_reaches_are_said_as_the_engine_raises(
    program: str, which: tuple[int, ...], tmp_path: Path
) -> None:
    findings, error = found_in(program, tmp_path)
    assert "differentiated Tensor" in error
    (found,) = findings
    assert (found.code, found.certainty, found.missed) == ("GS505", Certainty.CERTAIN, False)
    check_wording(found)
    assert re.findall(r"\[(\d+)\] is ", found.related[0].message) == [str(i) for i in which]


HEALTHY = {
    "allow_unused": "torch.autograd.grad(w.sum(), [v], allow_unused=True)",
    "materialize": "torch.autograd.grad(w.sum(), [v], materialize_grads=True)",
    "backward": "w.sum().backward(inputs=[v])",
    "a root itself": "h = w * 2\ntorch.autograd.grad(h.sum(), [h])\ntorch.autograd.grad(w, w, data)",
    "a result of a node": "a, b, c = w.unbind()\ntorch.autograd.grad(a + c, [a, c])",
    "second order": """
        x = torch.ones(3, requires_grad=True)
        (g,) = torch.autograd.grad((w * x.exp()).sum(), x, create_graph=True)
        torch.autograd.grad(g.sum(), [x, w])
    """,
    "a leaf that is given": "loss = torch.tensor(1.0, requires_grad=True)\nloss.backward()",
    "often": """
        for _ in range(40):
            (w * 2).sum().backward()
            torch.autograd.grad((w * v).exp().sum(), [w, v])
    """,
}


@pytest.mark.parametrize("program", HEALTHY.values(), ids=HEALTHY)
def test_what_the_engine_runs_is_not_said(program: str, tmp_path: Path) -> None:
    assert found_in(program, tmp_path) == ([], "")


ZEROS = {
    "sliced after": ("part = w[1:]", "out", "part", "(g.sum() + out)"),
    "the gradient is linear": ("", "3 * w.sum()", "v", "g.pow(2).sum()"),
    "one of several": ("", "out", "[w, v]", "(v - 0.1 * g).pow(2).sum()"),
    "an attribute": ("part = w.clone()", "out", "[w, part]", "(part * g).sum()"),
}
ASKED = """
{before}
for i in range(3):
    out = w.exp().sum()
    g = torch.autograd.grad({of}, {by}, create_graph={flag}, materialize_grads=True, allow_unused=True)[-1]
    loss = {loss}
    {use}
"""


@pytest.mark.parametrize("program", ZEROS.values(), ids=ZEROS)
def test_zeros_that_enter_a_loss_are_advice(program: tuple[str, ...], tmp_path: Path) -> None:
    parts = dict(zip(("before", "of", "by", "loss"), program, strict=True), flag=True)
    findings, error = found_in(ASKED.format(**parts, use="(loss + out).backward()"), tmp_path)
    assert error == ""
    (found,) = [each for each in findings if each.code == "GS505"]
    check_wording(found)
    assert (found.severity, found.certainty) == (Severity.ADVICE, Certainty.OBSERVED)
    assert found.label.endswith("materialize_grads=True hides that")
    name = program[2].strip("[]").split(", ")[-1]
    assert found.related[0].message.endswith(f"is {name}")
    for use in ("print(loss.item())", "(loss.detach() * out).backward()"):
        findings, error = found_in(ASKED.format(**parts, use=use), tmp_path)
        assert [each for each in findings if each.code == "GS505"] == []
    parts["flag"] = False
    findings, error = found_in(ASKED.format(**parts, use="w.grad = g"), tmp_path)
    assert [each for each in findings if each.code == "GS505"] == []


def test_zeros_of_the_program_s_own_are_not_taken_for_others(tmp_path: Path) -> None:
    program = """
        mine = torch.zeros(3, requires_grad=True)
        for i in range(3):
            out = w.exp().sum()
            g, = torch.autograd.grad(out, v, create_graph=True, materialize_grads=True)
            (mine + w).exp().sum().backward()
    """
    assert found_in(program, tmp_path) == ([], "")


def test_it_is_said_of_recognized_graphs_too(tmp_path: Path) -> None:
    """Those that are not looked at in full any more, as all of them were alike."""
    often = """
        for step in range(60):
            target = v if step == 55 else w
            try:
                torch.autograd.grad((w * data).exp().sum(), [target])
            except RuntimeError as error:
                print(error)
            if step == 58:
                loss = (w * data).exp().sum()
                torch.autograd.backward([loss, data.sum()])
    """
    findings, error = found_in(often, tmp_path)
    assert "element 1 of tensors" in error
    assert [(f.code, f.certainty, f.missed) for f in findings] == [
        ("GS505", Certainty.CERTAIN, False),
        ("GS501", Certainty.CERTAIN, False),
    ]


def test_a_derivative_that_gives_nothing_is_explained_after_the_error(tmp_path: Path) -> None:
    findings, error = found_in(
        """
        class Function(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, y):
                return x + y
            @staticmethod
            def backward(ctx, grad):
                return grad, None
        torch.autograd.grad(Function.apply(w, v).sum(), [w, v])
        """,
        tmp_path,
    )
    assert "differentiated Tensor" in error
    (found,) = findings
    check_wording(found)
    assert (found.code, found.certainty, found.missed) == ("GS505", Certainty.OBSERVED, False)
    assert "that returns nothing" in fix_of(found).message


def test_the_line_that_bound_the_root_is_named_and_what_is_known_of_it(tmp_path: Path) -> None:
    def notes(program: str) -> list[tuple[str, int | None]]:
        (found,), _ = findings_of(program, tmp_path)
        return [(r.message, None if r.site is None else r.site.line) for r in found.related]

    bound = (
        "import torch\nw = torch.ones(3)\nloss = w.sum()\nfor _ in range(2):\n    loss.backward()"
    )
    assert notes(bound) == [("`loss` was made here", 3)]
    either = (
        "import torch\nloss = torch.ones(())\nif loss > 0:\n    loss = loss * 2\nloss.backward()"
    )
    assert notes(either) == []
    mode = "import torch\nwith torch.inference_mode():\n    loss = torch.ones(())\nloss.backward()"
    assert notes(mode) == [("`loss` was made in inference mode", 3)]
    unnamed = "import torch\ntorch.ones(2, dtype=torch.int64).sum().backward()"
    ((message, line),) = notes(unnamed)
    assert (message.partition(",")[0], line) == ("it is i64[]", None)


def test_inputs_are_named_as_the_program_writes_them(tmp_path: Path) -> None:
    (found,), _ = found_in(
        """
        net = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 1), "b": torch.nn.Linear(3, 1)})
        params = dict(net.named_parameters())
        loss = net["a"](data).sum()
        torch.autograd.grad(loss, [w, *params.values()])
        """,
        tmp_path,
    )
    assert found.parameters == ("w", "net.b.weight", "net.b.bias")
    assert found.related[0].message == (
        "[0] is w, [3] is params['b.weight'], [4] is params['b.bias']"
    )
    assert (
        found.message
        == "gradients are asked for of 3 of 5 inputs that `loss` was not computed from"
    )


def test_an_error_is_raised_in_the_place_of_the_engine_s(tmp_path: Path) -> None:
    with (
        gradscope.watch(raise_on="error") as scope,
        pytest.raises(RuntimeError, match=r"^\[GS501\] backward from"),
    ):
        torch.ones(()).backward()
    assert [f.code for f in scope.findings] == ["GS501"]


def test_what_a_program_catches_is_found(tmp_path: Path) -> None:
    findings, error = found_in(
        "try:\n    data.sum().backward()\nexcept RuntimeError:\n    pass", tmp_path
    )
    assert ([f.code for f in findings], error) == (["GS501"], "")


def leaf() -> Tensor:
    return torch.rand(3, requires_grad=True)


@pytest.mark.parametrize(
    ("ask", "code"),
    [
        (lambda: gradscope.check(torch.ones(())), "GS501"),
        (lambda: gradscope.check(leaf().sum(), torch.ones(())), "GS501"),
        (lambda: gradscope.check(torch.ones(()), inputs=leaf(), kind="grad"), "GS501"),
        (lambda: gradscope.check(leaf().sum(), inputs=leaf(), kind="grad"), "GS505"),
        (lambda: gradscope.check(leaf().sum(), inputs=torch.ones(3), kind="grad"), "GS505"),
        (lambda: gradscope.check(leaf().sum(), inputs=leaf()), ""),
    ],
)
@pytest.mark.parametrize("watched", [False, True])
def test_check_says_it_before_any_call(ask: Callable[[], Any], code: str, watched: bool) -> None:
    if watched:
        with gradscope.watch():
            found = ask()
    else:
        found = ask()
    assert [f.code for f in found] == ([code] if code else [])


def test_many_inputs_are_counted() -> None:
    inputs = tuple(gs505.Input(i, None, f"net.{i}.weight", "f32[3]") for i in range(6))
    found = gs505.finding(gs505.Unreached(CALL, inputs, ("loss",), of=8))
    check_wording(found)
    assert found.label == "[0], [1], [2], [3] and 2 more are unused: the engine will raise"
    assert found.related[0].message.endswith("[3] is net.3.weight, and 2 more")

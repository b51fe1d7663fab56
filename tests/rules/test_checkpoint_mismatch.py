"""GS601: what is said of a checkpoint whose second run differs, from facts and from programs; and what may be looked at for that."""

from __future__ import annotations

import functools
import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointError, checkpoint

import gradscope
from gradscope.collect.checkpoints import changed, generators, parameters, reads_of
from gradscope.fixing.constructs import with_edits
from gradscope.model import BackwardCall, Certainty, Severity, Site
from gradscope.program.tensors import sums_of
from gradscope.rules import gs601
from gradscope.rules.gs601 import PRESERVED, Operand, Recomputed
from tests import known
from tests.rules.saying import check_wording, findings_of, fix_of

CALL = BackwardCall(3, "backward", Site("train.py", 40))
HERE = Site("train.py", 30)
THEN, NOW = Operand(HERE, "net.0", "f32[6, 8]"), Operand(HERE, "net.0", "f32[7, 8]")
FACTS = Recomputed(CALL, Site("train.py", 20), THEN, NOW, "AddmmBackward0")


@pytest.mark.parametrize(
    ("facts", "says", "advises"),
    [
        (FACTS, "saved f32[6, 8] in the forward pass, f32[7, 8] now", "routing"),
        (FACTS._replace(now=None), "saved f32[6, 8] here, and does not run again", "routing"),
        (FACTS._replace(then=None), "saves f32[7, 8] here, and nothing in", "routing"),
        (FACTS._replace(drawn=("torch",), preserves=False), "drew random numbers", PRESERVED),
        (FACTS._replace(drawn=("random",)), "drew from `random`", "draw from `random` before"),
        (FACTS._replace(preserves=False), "drawn anew", PRESERVED),
        (FACTS._replace(changed=("self.training",)), "`self.training`", "train() and eval()"),
        (FACTS._replace(changed=("self.seen", "b")), "`self.seen`, `b`", "same `self.seen`"),
        (FACTS._replace(elsewhere=True), "in another thread", "each thread has"),
        (FACTS._replace(is_reentrant=True), "output was f32[6, 8], and is f32[7, 8]", "routing"),
    ],
)
def test_each_cause_has_a_sentence_and_a_way_out(
    facts: Recomputed, says: str, advises: str
) -> None:
    finding = gs601.finding(facts)
    check_wording(finding)
    assert (finding.severity, finding.certainty) == (Severity.ERROR, Certainty.CERTAIN)
    assert any(says in note.message for note in finding.related)
    assert advises in fix_of(finding).message
    assert finding.related[0].site == facts.checkpoint


def test_what_raises_nothing_is_a_warning_and_what_torch_said_first_is_observed() -> None:
    silent = gs601.finding(FACTS._replace(now=THEN, is_silent=True, changed=("net.0.weight",)))
    late = gs601.finding(FACTS._replace(has_raised=True))
    assert (silent.severity, silent.certainty) == (Severity.WARNING, Certainty.OBSERVED)
    assert "saves f32[6, 8] with other values" in silent.related[1].message
    assert (late.severity, late.certainty) == (Severity.ERROR, Certainty.OBSERVED)


ROUTER = """
import torch
from torch.utils.checkpoint import checkpoint
gate = torch.nn.Linear(8, 8)
def route(x):
    chosen = (torch.rand(64) < 0.5).nonzero().squeeze(-1)
    return x.index_add(0, chosen, gate(x[chosen]).tanh())
torch.manual_seed(0)
y = checkpoint(route, torch.randn(64, 8), use_reentrant=False, preserve_rng_state=False).sum()
y.backward()
"""


def test_the_state_of_random_numbers_is_an_edit(tmp_path: Path) -> None:
    script = tmp_path / "router.py"
    script.write_text(ROUTER)
    with pytest.raises(CheckpointError), gradscope.watch() as scope:
        exec(compile(ROUTER, str(script), "exec"), {"__name__": "__main__"})
    (finding,) = with_edits(scope.recording()).findings
    (edit,) = known(finding.fix).edits
    assert (edit.line, "preserve_rng_state=True).sum()" in edit.replacement) == (9, True)


def test_it_is_said_before_torch_raises() -> None:
    said: list[str] = []

    def differs(x: torch.Tensor) -> torch.Tensor:
        out = (x[:2] if said_before else x).tanh()
        said.append("run")
        return out

    said_before: list[int] = []
    with gradscope.watch(on_finding=lambda finding: said.append(finding.code)):
        y = checkpoint(differs, torch.ones(3, requires_grad=True), use_reentrant=False)
        said_before.append(1)
        with pytest.raises(CheckpointError):
            y.sum().backward()
    assert said == ["run", "GS601"]


def test_an_error_that_the_program_catches_is_not_told_twice(tmp_path: Path) -> None:
    program = ROUTER.replace("y.backward()", "try:\n    y.backward()\nexcept RuntimeError: pass\n")
    findings, raised = findings_of(program, tmp_path)
    assert ([(each.code, each.count) for each in findings], raised) == ([("GS601", 1)], "")


@pytest.mark.parametrize("hooks", [True, False])
@pytest.mark.parametrize("debug", [True, False])
def test_without_hooks_and_with_torch_s_own_debugging_it_is_said_all_the_same(
    hooks: bool, debug: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytest's own handler cannot format what torch logs.
    monkeypatch.setattr(logging.getLogger("LoggingTensor"), "propagate", False)
    program = ROUTER.replace("use_reentrant=False", f"use_reentrant=False, debug={debug}")
    with pytest.raises(CheckpointError), gradscope.watch(hooks=hooks) as scope:
        exec(compile(program, "router.py", "exec"), {"__name__": "__main__"})
    assert [(each.code, each.missed) for each in scope.findings] == [("GS601", False)]


class Reader(nn.Module):
    limit = 3

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.table = nn.Linear(2, 2), dict[int, int]()
        self.register_buffer("load", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x) * SCALE[0]
        return out


SCALE = [1.0]


def test_what_a_function_reads_is_known_by_name() -> None:
    reader = Reader()
    function = functools.partial(reader.forward)
    before: Any = reads_of(function)
    reader.eval()
    reader.table[1] = 1
    reader.get_buffer("load").add_(1)
    SCALE[0] += 1
    with torch.no_grad():
        reader.layer.weight.add_(1)
    names = changed(before, reads_of(function))
    assert names == ("self.training", "self.table", "SCALE[0]", "self.load", "self.layer.weight")
    assert [*parameters(before)] == ["self.layer.weight", "self.layer.bias"]
    assert changed(before, before) == ()


@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("torch", lambda: torch.rand(2)),
        ("random", random.random),
        ("numpy.random", np.random.rand),
    ],
)
def test_a_draw_moves_its_generator_alone(name: str, draw: Any) -> None:
    before = generators()
    assert generators() == before
    draw()
    assert [each for each, state in generators().items() if state != before[each]] == [name]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64])
@pytest.mark.parametrize("length", [5, 4_000])
def test_sums_tell_values_and_their_order(dtype: torch.dtype, length: int) -> None:
    tensor = torch.arange(1, length + 1).to(dtype)
    same, turned = sums_of(tensor.clone()), sums_of(tensor.flip(0))
    assert same == sums_of(tensor) != turned


def test_of_some_tensors_no_sums_are_taken() -> None:
    none = [
        torch.ones(3, dtype=torch.uint8),
        torch.ones(3, device="meta"),
        torch.eye(3).to_sparse(),
    ]
    assert [sums_of(each) for each in none] == [None] * 3


@pytest.mark.parametrize("reentrant", [True, False])
def test_once_iterations_repeat_nothing_is_noted_of_checkpoints(reentrant: bool) -> None:
    own = vars(torch.utils.checkpoint)["_get_autocast_kwargs"]
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    noted = []

    def run(x: torch.Tensor) -> torch.Tensor:
        noted.append(vars(torch.utils.checkpoint)["_get_autocast_kwargs"] is not own)
        out: torch.Tensor = net(x)
        return out

    with gradscope.watch() as scope:
        for _ in range(30):
            optimizer.zero_grad()
            x = torch.randn(2, 4, requires_grad=True)
            checkpoint(run, x, use_reentrant=reentrant).sum().backward()
            optimizer.step()
    assert (noted[0], noted[-1]) == (True, False)
    assert vars(torch.utils.checkpoint)["_get_autocast_kwargs"] is own
    assert scope.findings == []

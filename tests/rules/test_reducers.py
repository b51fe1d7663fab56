"""GS602 and GS603: what DistributedDataParallel raises is said before, with names, and nothing of what it allows."""

from __future__ import annotations

import json
import runpy
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

import gradscope
from gradscope.model import Finding, Severity
from gradscope.rules import gs602, gs603
from gradscope.rules.base import Rule
from tests import examples
from tests.command import ran
from tests.rules.saying import check_wording
from tests.zygote import python

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch has no gloo here"
)
each_rule = pytest.mark.parametrize("rule", [gs602.RULE, gs603.RULE], ids=lambda rule: rule.code)

START = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x, ways=("left", "right")):
        h = self.trunk(x).tanh()
        return tuple(getattr(self, way)(h) * self.scale for way in ways)


class Repeated(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first, self.block, self.reentrant = nn.Linear(4, 4), nn.Linear(4, 4), reentrant

    def forward(self, x):
        x = self.first(x)
        for _ in range(2):
            x = checkpoint(self.block, x, use_reentrant=self.reentrant)
        return x


def wrapped(net, **options):
    net = DistributedDataParallel(net, **options)
    return net, torch.optim.SGD(net.parameters(), lr=0.01)


x = torch.randn(8, 4)
"""

TWICE = {
    "tied before a checkpoint": (
        """
        class Tied(Repeated):
            def forward(self, x):
                x = self.first(nn.functional.linear(x, self.block.weight))
                return checkpoint(self.block, x, use_reentrant=True)

        model, optimizer = wrapped(Tied(True))
        for step in range(3):
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
        """,
        "block.weight",
        "backward call 2 that is made within it, then by backward call 1",
    ),
    "two forwards, unused searched for": (
        """
        model, optimizer = wrapped(Net(), find_unused_parameters=True)
        for step in range(3):
            optimizer.zero_grad()
            (left,), (right,) = model(x, ["left"]), model(x, ["right"])
            (left.pow(2).mean() + right.pow(2).mean()).backward()
            optimizer.step()
        """,
        "left.*",
        "first marked as unused",
    ),
    "tied to a checkpoint": (
        """
        class Tied(Repeated):
            def forward(self, x):
                x = checkpoint(self.block, self.first(x), use_reentrant=True)
                return nn.functional.linear(x, self.block.weight)

        model, optimizer = wrapped(Tied(True))
        for step in range(3):
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
        """,
        "block.weight",
        "by backward call 1, then by backward call 2",
    ),
    "checkpoint twice": (
        """
        model, optimizer = wrapped(Repeated(reentrant=True))
        for step in range(3):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
        """,
        "block.*",
        "by backward call 2, then by backward call 3",
    ),
    "two forwards, two backward calls": (
        """
        model, optimizer = wrapped(Net())
        for step in range(3):
            optimizer.zero_grad()
            (left,), (right,) = model(x, ["left"]), model(x, ["right"])
            left.pow(2).mean().backward()
            right.pow(2).mean().backward()
            optimizer.step()
        """,
        "scale trunk.*",
        "by backward call 1, then by backward call 2",
    ),
    "one forward, two backward calls": (
        """
        model, optimizer = wrapped(Net())
        for step in range(3):
            optimizer.zero_grad()
            left, right = model(x)
            left.pow(2).mean().backward(retain_graph=True)
            right.pow(2).mean().backward()
            optimizer.step()
        """,
        "scale trunk.*",
        "by backward call 1, then by backward call 2",
    ),
    "a penalty on its own": (
        """
        model, optimizer = wrapped(Net())
        for step in range(3):
            optimizer.zero_grad()
            left, right = model(x)
            penalty = 0.1 * model.module.scale.pow(2).sum()
            penalty.backward()
            (left - right).pow(2).mean().backward()
            optimizer.step()
        """,
        "scale",
        "by backward call 1, then by backward call 2",
    ),
    "outside of forward, unused searched for": (
        """
        model, optimizer = wrapped(Net(), find_unused_parameters=True)
        for step in range(3):
            optimizer.zero_grad()
            (left,) = model(x, ["left"])
            loss = left.pow(2).mean() + model.module.right.weight.pow(2).sum()
            loss.backward()
            optimizer.step()
        """,
        "right.weight",
        "first marked as unused",
    ),
    "checkpoint, unused searched for": (
        """
        model, optimizer = wrapped(Repeated(reentrant=True), find_unused_parameters=True)
        for step in range(3):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
        """,
        "block.*",
        "first marked as unused",
    ),
    "late, with an unused one": (
        """
        model, optimizer = wrapped(Net())
        for step in range(60):
            optimizer.zero_grad()
            if step < 50:
                left, right = model(x)
                (left - right).pow(2).mean().backward()
            else:
                left, right = model(x)
                left.pow(2).mean().backward(retain_graph=True)
                right.pow(2).mean().backward()
            optimizer.step()
        """,
        "scale trunk.*",
        "by backward call 51, then by backward call 52",
    ),
}
"""Programs, each with what is marked twice and by whom."""

UNFINISHED = {
    "a layer that is never used": (
        """
        model, optimizer = wrapped(Net())
        for step in range(3):
            optimizer.zero_grad()
            (left,) = model(x, ["left"])
            left.pow(2).mean().backward()
            optimizer.step()
        """,
        "right.*",
        "predicted",
    ),
    "an output that is not in the loss": (
        """
        model, optimizer = wrapped(Net())
        for step in range(3):
            optimizer.zero_grad()
            left, right = model(x)
            left.pow(2).mean().backward()
            optimizer.step()
        """,
        "right.*",
        "predicted",
    ),
    "a branch that comes late": (
        """
        model, optimizer = wrapped(Net())
        for step in range(60):
            optimizer.zero_grad()
            ways = ["left", "right"] if step < 50 else ["left"]
            sum(way.pow(2).mean() for way in model(x, ways)).backward()
            optimizer.step()
        """,
        "right.*",
        "observed",
    ),
    "frozen after it was wrapped": (
        """
        model, optimizer = wrapped(Net())
        model.module.trunk.requires_grad_(False)
        for step in range(3):
            optimizer.zero_grad()
            left, right = model(x)
            (left - right).pow(2).mean().backward()
            optimizer.step()
        """,
        "trunk.*",
        "predicted",
    ),
    "a graph that is not static": (
        """
        model, optimizer = wrapped(Net(), static_graph=True)
        for step in range(4):
            optimizer.zero_grad()
            ways = ["left", "right"] if step < 2 else ["left"]
            sum(way.pow(2).mean() for way in model(x, ways)).backward()
            optimizer.step()
        """,
        "right.*",
        "predicted",
    ),
    "no_sync": (
        """
        model, optimizer = wrapped(Net())
        for step in range(3):
            optimizer.zero_grad()
            with model.no_sync():
                left, right = model(x)
                (left - right).pow(2).mean().backward()
            (left,) = model(x, ["left"])
            left.pow(2).mean().backward()
            optimizer.step()
        """,
        "right.*",
        "predicted",
    ),
    "no optimizer": (
        """
        model, _ = wrapped(Net())
        for step in range(3):
            (left,) = model(x, ["left"])
            left.pow(2).mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter -= 0.01 * parameter.grad
                        parameter.grad = None
        """,
        "right.*",
        "observed",
    ),
    "detached": (
        """
        class Cut(Net):
            def forward(self, x):
                left, right = super().forward(x)
                self.kept = right.sum()
                return {"left": left, "right": right.sum()}

        model, optimizer = wrapped(Cut())
        for step in range(3):
            optimizer.zero_grad()
            out = model(x)
            (out["left"].pow(2).mean() + out["right"].item()).backward()
            optimizer.step()
        """,
        "right.*",
        "predicted",
    ),
}
"""Programs, each with what got no gradient, and whether that was said at the step before."""

HEALTHY = {
    "two forwards, two backward calls": """
        model, optimizer = wrapped(Net())
        for step in range(4):
            optimizer.zero_grad()
            (left, right), (other, another) = model(x), model(x + 1)
            (left - right).pow(2).mean().backward()
            (other - another).pow(2).mean().backward()
            optimizer.step()
    """,
    "two models": """
        model, optimizer = wrapped(nn.Linear(4, 4))
        judge, its = wrapped(nn.Linear(4, 1))
        for step in range(60):
            optimizer.zero_grad(), its.zero_grad()
            made = model(x)
            judge(made.detach()).mean().backward()
            its.step()
            judge(made).mean().backward()
            optimizer.step()
    """,
    "late, in full again": """
        model, optimizer = wrapped(Net())
        for step in range(80):
            optimizer.zero_grad()
            if step > 40 and step % 20 == 19:
                model.module.scale.sum().backward()
            left, right = model(x)
            if step % 20 == 19:
                left = left + right.exp()
            (left - right).pow(2).mean().backward() if step < 60 else (left.sum() * right.sum()).backward()
            optimizer.step()
    """,
    "two losses of two parts, late": """
        class Two(nn.Module):
            def __init__(self):
                super().__init__()
                self.left, self.right = nn.Linear(4, 2), nn.Linear(4, 2)

            def forward(self, x):
                return self.left(x), self.right(x)

        model, optimizer = wrapped(Two())
        for step in range(90):
            optimizer.zero_grad()
            left, right = model(x)
            left.pow(2).mean().backward()
            (right.pow(2).mean() if step % 30 < 20 else right.exp().mean()).backward()
            optimizer.step()
    """,
    "static_graph": """
        model, optimizer = wrapped(Repeated(reentrant=True), static_graph=True)
        for step in range(4):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
    """,
    "static_graph with an unused layer": """
        model, optimizer = wrapped(Net(), static_graph=True)
        for step in range(4):
            optimizer.zero_grad()
            (left,) = model(x, ["left"])
            left.pow(2).mean().backward()
            optimizer.step()
    """,
    "find_unused_parameters": """
        model, optimizer = wrapped(Net(), find_unused_parameters=True)
        for step in range(4):
            optimizer.zero_grad()
            (one,) = model(x, ["left" if step % 2 else "right"])
            one.pow(2).mean().backward()
            optimizer.step()
    """,
    "find_unused_parameters, an output aside": """
        model, optimizer = wrapped(Net(), find_unused_parameters=True)
        for step in range(4):
            optimizer.zero_grad()
            left, right = model(x)
            left.pow(2).mean().backward()
            optimizer.step()
    """,
    "no_sync": """
        model, optimizer = wrapped(Net())
        for step in range(4):
            optimizer.zero_grad()
            for i in range(3):
                with model.no_sync() if i < 2 else torch.enable_grad():
                    left, right = model(x)
                    (left - right).pow(2).mean().backward()
            optimizer.step()
    """,
    "no_sync, branches": """
        model, optimizer = wrapped(Net())
        for step in range(4):
            optimizer.zero_grad()
            with model.no_sync():
                for way in ("left", "right"):
                    (one,) = model(x, [way])
                    one.pow(2).mean().backward()
            left, right = model(x)
            (left - right).pow(2).mean().backward()
            optimizer.step()
    """,
    "no_sync, unused searched for, outside of forward": """
        model, optimizer = wrapped(Net(), find_unused_parameters=True)
        for step in range(4):
            optimizer.zero_grad()
            with model.no_sync():
                (left,) = model(x, ["left"])
                (left.pow(2).mean() + model.module.right.weight.sum() * model.module.right.bias.sum()).backward()
            left, right = model(x)
            (left - right).pow(2).mean().backward()
            optimizer.step()
    """,
    "outside of forward": """
        model, optimizer = wrapped(Net())
        for step in range(4):
            optimizer.zero_grad()
            left, right = model(x)
            ((left - right).pow(2).mean() + model.module.scale.pow(2).sum()).backward()
            optimizer.step()
    """,
    "a penalty before the forward": """
        model, optimizer = wrapped(Net())
        for step in range(4):
            optimizer.zero_grad()
            model.module.scale.pow(2).sum().backward()
            left, right = model(x)
            (left - right).pow(2).mean().backward()
            optimizer.step()
    """,
    "a penalty after it all": """
        model, optimizer = wrapped(Net())
        for step in range(4):
            optimizer.zero_grad()
            left, right = model(x)
            (left - right).pow(2).mean().backward()
            model.module.scale.pow(2).sum().backward()
            optimizer.step()
    """,
    "two forwards, one backward": """
        model, optimizer = wrapped(Net())
        for step in range(4):
            optimizer.zero_grad()
            (left,), (right,) = model(x, ["left"]), model(x, ["right"])
            (left - right).pow(2).mean().backward()
            optimizer.step()
    """,
    "two losses of two parts": """
        class Two(nn.Module):
            def __init__(self):
                super().__init__()
                self.left, self.right = nn.Linear(4, 2), nn.Linear(4, 2)

            def forward(self, x):
                return self.left(x), self.right(x)

        model, optimizer = wrapped(Two())
        for step in range(4):
            optimizer.zero_grad()
            left, right = model(x)
            left.pow(2).mean().backward()
            right.pow(2).mean().backward()
            optimizer.step()
    """,
    "checkpoint without reentrance": """
        model, optimizer = wrapped(Repeated(reentrant=False))
        for step in range(4):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
    """,
    "a step of another optimizer": """
        model, optimizer = wrapped(Net())
        other = nn.Linear(2, 2)
        its = torch.optim.SGD(other.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            left, right = model(x)
            hidden = left.detach().requires_grad_()
            other(hidden).pow(2).mean().backward()
            its.step()
            torch.autograd.backward([left, right.sum()], [hidden.grad, None])
            optimizer.step()
    """,
    "evaluation between": """
        model, optimizer = wrapped(Net())
        for step in range(4):
            optimizer.zero_grad()
            left, right = model(x)
            with torch.no_grad():
                model(x)
            (left - right).pow(2).mean().backward()
            optimizer.step()
            with torch.no_grad():
                model(x)
    """,
    "a gradient taken aside": """
        model, optimizer = wrapped(Net())
        for step in range(4):
            optimizer.zero_grad()
            left, right = model(x)
            torch.autograd.grad(left.sum(), [model.module.scale, *model.module.left.parameters()], retain_graph=True)
            (left - right).pow(2).mean().backward()
            optimizer.step()
    """,
    "found and caught": """
        model, optimizer = wrapped(Net())
        for step in range(4):
            optimizer.zero_grad()
            left, right = model(x)
            left.pow(2).mean().backward(inputs=list(model.module.left.parameters()), retain_graph=True)
            others = [p for n, p in model.module.named_parameters() if not n.startswith("left")]
            (left - right).pow(2).mean().backward(inputs=others)
            optimizer.step()
    """,
}


@pytest.fixture(autouse=True)
def group_of_one() -> Iterator[None]:
    """Leave the process group that a program has entered, and put back the hook that torch sets then."""
    hook = sys.excepthook
    yield
    sys.excepthook = hook
    if dist.is_initialized():
        dist.destroy_process_group()


def found_in(source: str, folder: Path) -> tuple[list[Finding], list[Finding], str]:
    """Return what was announced, what it is in the end, and the error that ended the program."""
    script = folder / "example.py"
    script.write_text(source, encoding="utf-8")
    announced: list[Finding] = []
    raised = ""
    with gradscope.watch(on_finding=announced.append) as scope:
        try:
            runpy.run_path(str(script), run_name="__main__")
        except RuntimeError as error:
            raised = str(error)
            scope.explain(error)
        assert not scope.recording().summary.notes
    mine = [[f for f in each if f.code[:3] == "GS6"] for each in (announced, scope.findings)]
    return mine[0], mine[1], raised


def program(body: str) -> str:
    return START + textwrap.dedent(body)


@each_rule
def test_the_bad_example_has_this_finding_and_no_other(rule: Rule, tmp_path: Path) -> None:
    announced, _, error = found_in(examples.bad(rule), tmp_path)
    assert [(f.code, f.certainty) for f in announced] == [(rule.code, rule.certainty)]
    assert error


@each_rule
def test_the_good_example_has_none(rule: Rule, tmp_path: Path) -> None:
    assert found_in(examples.good(rule), tmp_path) == ([], [], "")


def named(finding: Finding, model: str = "model.module.") -> str:
    """Return the patterns of its parameters."""
    names = [name.removeprefix(model) for name in finding.parameters]
    modules = dict.fromkeys(n.rpartition(".")[0] for n in names)
    whole = {m: {f"{m}.weight", f"{m}.bias"} <= {*names} for m in modules if m}
    short = (f"{m}.*" if whole.get(m := n.rpartition(".")[0]) else n for n in names)
    return " ".join(dict.fromkeys(short))


@pytest.mark.full(but=3)
@pytest.mark.parametrize(("body", "names", "marked"), TWICE.values(), ids=TWICE)
def test_a_second_mark_is_announced_before_it_is_made(
    body: str, names: str, marked: str, tmp_path: Path
) -> None:
    (found,), (last,), error = found_in(program(body), tmp_path)
    assert gs602.ERROR in error
    check_wording(found)
    assert (found.code, found.certainty, last.count, last.missed) == ("GS602", "certain", 1, False)
    assert named(found) == names
    assert marked in found.related[0].message
    index = gs602.index_in(error)
    assert found.parameters, index


@pytest.mark.full(but=3)
@pytest.mark.parametrize(("body", "names", "certainty"), UNFINISHED.values(), ids=UNFINISHED)
def test_what_got_no_gradient_is_named_and_where_it_can_be_before_the_next_forward(
    body: str, names: str, certainty: str, tmp_path: Path
) -> None:
    (found,), (last,), error = found_in(program(body), tmp_path)
    assert gs603.ERROR in error
    assert (found.code, found.certainty, last.count) == ("GS603", certainty, 1)
    assert (last.severity, last.certainty) == (Severity.ERROR, "observed")
    assert len(gs603.indices_in(error)) == len(last.parameters)
    for each in (found, last):
        check_wording(each)
        assert named(each) == names


@pytest.mark.full(but=5)
@pytest.mark.parametrize("body", HEALTHY.values(), ids=HEALTHY)
def test_of_what_is_allowed_nothing_is_said(body: str, tmp_path: Path) -> None:
    assert found_in(program(body), tmp_path) == ([], [], "")


RANKS = """
import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

def work(rank, options):
    dist.init_process_group("gloo", f"file://{os.getcwd()}/store", rank=rank, world_size=2)
    net = torch.nn.ModuleDict({"left": torch.nn.Linear(4, 1), "right": torch.nn.Linear(4, 1)})
    net.forward = lambda x: net["right" if rank else "left"](x)
    model = DistributedDataParallel(net, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        loss = model(torch.randn(8, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()

context = mp.get_context("fork")
processes = [context.Process(target=work, args=(rank, OPTIONS)) for rank in range(2)]
for process in processes:
    process.start()
for process in processes:
    process.join()
"""


@pytest.mark.full
@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}], ids=["plain", "unused"])
def test_a_branch_that_differs_by_rank(options: dict[str, bool], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS.replace("OPTIONS", repr(options)))
    watched = ("-m", "gradscope", "run", "--format", "json", "--output", "report.json", "train.py")
    ran(python(), *watched, cwd=tmp_path, OMP_NUM_THREADS="1")
    report = json.loads((tmp_path / "report.json").read_text())
    said = {
        (f["processes"][0], *f["parameters"])
        for f in report["findings"]
        if f["code"] == "GS603" and f["message"].endswith(f"on {f['processes'][0]}")
    }
    of = {rank: f"model.module.{name}" for rank, name in (("rank 0", "right"), ("rank 1", "left"))}
    expected = {(rank, f"{name}.weight", f"{name}.bias") for rank, name in of.items()}
    assert said == (set() if options else expected), report["findings"]


def test_a_call_that_was_not_looked_at_is_explained_after_it() -> None:
    call = gradscope.model.BackwardCall(3, "backward", None)
    facts = gs602.MarkedTwice(call, is_raised=True, rank=(1, 2))
    found = gs602.finding(facts)
    assert found.message == "a parameter was marked as ready twice on rank 1"
    assert (found.certainty, found.missed) == ("observed", False)
    check_wording(found)

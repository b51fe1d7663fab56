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
from gradscope.model import BackwardCall, Finding, Severity, Site
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
x = torch.randn(8, 4)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x, ways=("left", "right")):
        h = self.trunk(x).tanh()
        return tuple(getattr(self, way)(h) * self.scale for way in ways)

class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x):
        return self.left(x), self.right(x)

class Repeated(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.first, self.block, self.way = nn.Linear(4, 4), nn.Linear(4, 4), way

    def forward(self, x):
        x = self.first(x)
        for how in self.way:
            if how == "tied":
                x = nn.functional.linear(x, self.block.weight)
            else:
                x = checkpoint(self.block, x, use_reentrant=how == "reentrant")
        return x

def train(losses, net, steps=4, prepare=lambda net: None, **options):
    model = DistributedDataParallel(net, **options)
    prepare(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        for loss in losses(model, step):
            loss.backward(retain_graph=True)
        optimizer.step()
        optimizer.zero_grad()

def ways(*names):
    return lambda model, step: (sum(out.pow(2).mean() for out in model(x, names)),)

def first(model, step):
    yield model(x)[0].pow(2).mean()

def both(model, step):
    left, right = model(x)
    yield (left - right).pow(2).mean()

def each(model, step):
    yield from (out.pow(2).mean() for out in model(x))

def of_one(model, step):
    yield model(x).pow(2).mean()

def forward_twice(model, step):
    (left,), (right,) = model(x, ["left"]), model(x, ["right"])
    yield (left - right).pow(2).mean()

def forward_and_backward_twice(model, step, *ways):
    outputs = [model(x, [way]) for way in ("left", "right")]
    yield from (output.pow(2).mean() for (output,) in outputs)

def penalty(model):
    return model.module.scale.pow(2).sum()
"""

TWICE = {
    "checkpoint twice": (
        "train(of_one, Repeated(['reentrant', 'reentrant']))",
        *("block.*", "by backward call 2, then by backward call 3"),
    ),
    "tied to a checkpoint": (
        "train(of_one, Repeated(['reentrant', 'tied']))",
        *("block.weight", "by backward call 1, then by backward call 2"),
    ),
    "tied before a checkpoint": (
        "train(of_one, Repeated(['tied', 'reentrant']))",
        *("block.weight", "by backward call 2 that is made within it, then by backward call 1"),
    ),
    "checkpoint, unused searched for": (
        "train(of_one, Repeated(['reentrant']), find_unused_parameters=True)",
        *("block.*", "first marked as unused"),
    ),
    "one forward, two backward calls": (
        "train(each, Net())",
        *("scale trunk.*", "by backward call 1, then by backward call 2"),
    ),
    "two forwards, two backward calls": (
        "train(forward_and_backward_twice, Net())",
        *("scale trunk.*", "by backward call 1, then by backward call 2"),
    ),
    "two forwards, unused searched for": (
        "train(forward_twice, Net(), find_unused_parameters=True)",
        *("left.*", "first marked as unused"),
    ),
    "a penalty on its own": (
        """
        def losses(model, step):
            left, right = model(x)
            yield penalty(model)
            yield (left - right).pow(2).mean()

        train(losses, Net())
        """,
        *("scale", "by backward call 1, then by backward call 2"),
    ),
    "outside of forward, unused searched for": (
        """
        def losses(model, step):
            (left,) = model(x, ["left"])
            yield left.pow(2).mean() + model.module.right.weight.pow(2).sum()

        train(losses, Net(), find_unused_parameters=True)
        """,
        *("right.weight", "first marked as unused"),
    ),
    "late": (
        """
        def losses(model, step):
            if step < 50:
                yield from both(model, step)
            else:
                left, right = model(x)
                left.pow(2).mean().backward(retain_graph=True)
                right.pow(2).mean().backward()

        train(losses, Net(), steps=60)
        """,
        *("scale trunk.*", "by backward call 51, then by backward call 52"),
    ),
}
"""Programs, each with what is marked twice and by whom."""

UNFINISHED = {
    "a layer that is never used": ("train(ways('left'), Net())", "right.*", "predicted"),
    "an output that is not in the loss": ("train(first, Net())", "right.*", "predicted"),
    "an output that is cut off": (
        """
        def losses(model, step):
            left, right = model(x)
            yield (left - right.detach()).pow(2).mean()

        train(losses, Net())
        """,
        *("right.*", "predicted"),
    ),
    "a branch that comes late": (
        "train(lambda *at: (both if at[1] < 50 else ways('left'))(*at), Net(), steps=60)",
        *("right.*", "predicted"),
    ),
    "frozen after it was wrapped": (
        "train(both, Net(), prepare=lambda net: net.trunk.requires_grad_(False))",
        *("trunk.*", "predicted"),
    ),
    "a graph that is not static": (
        "train(lambda *at: (both if at[1] < 2 else ways('left'))(*at), Net(), static_graph=True)",
        *("right.*", "predicted"),
    ),
    "no_sync": (
        """
        def losses(model, step):
            with model.no_sync():
                yield from both(model, step)
            yield from first(model, step)

        train(losses, Net())
        """,
        *("right.*", "predicted"),
    ),
    "no optimizer": (
        """
        model = DistributedDataParallel(Net())
        for step in range(3):
            for loss in first(model, step):
                loss.backward()
        """,
        *("right.*", "observed"),
    ),
}
"""Programs, each with what got no gradient, and whether that was said at the step before."""

HEALTHY = {
    "static_graph": "train(of_one, Repeated(['reentrant', 'reentrant']), static_graph=True)",
    "static_graph, an unused layer": "train(ways('left'), Net(), static_graph=True)",
    "find_unused_parameters": """
        train(lambda *at: ways("left" if at[1] % 2 else "right")(*at), Net(), find_unused_parameters=True)
    """,
    "find_unused_parameters, an output aside": "train(first, Net(), find_unused_parameters=True)",
    "checkpoint without reentrance": "train(of_one, Repeated(['plain', 'plain']))",
    "two forwards, one backward": "train(forward_twice, Net())",
    "two losses of two parts": "train(each, Parts())",
    "two losses of two parts, late": """
        def losses(model, step):
            left, right = model(x)
            yield left.pow(2).mean()
            yield right.pow(2).mean() if step % 30 < 20 else right.exp().mean()

        train(losses, Parts(), steps=90)
    """,
    "no_sync": """
        def losses(model, step):
            with model.no_sync():
                for way in ("left", "right"):
                    yield from ways(way)(model, step)
            yield from both(model, step)

        train(losses, Net())
    """,
    "no_sync, unused searched for, outside of forward": """
        def losses(model, step):
            with model.no_sync():
                (left,) = model(x, ["left"])
                yield left.pow(2).mean() + model.module.right.weight.sum()
            yield from both(model, step)

        train(losses, Net(), find_unused_parameters=True)
    """,
    "outside of forward": "train(lambda *at: [l + penalty(at[0]) for l in both(*at)], Net())",
    "a penalty before the forward": """
        def losses(model, step):
            yield penalty(model)
            yield from both(model, step)

        train(losses, Net())
    """,
    "a penalty after it all": """
        def losses(model, step):
            yield from both(model, step)
            yield penalty(model)

        train(losses, Net())
    """,
    "a penalty at times, and another graph": """
        def losses(model, step):
            if step % 20 == 19:
                yield penalty(model)
            left, right = model(x)
            yield (left - right).pow(2).mean() if step < 60 else (left.sum() * right.sum())

        train(losses, Net(), steps=80)
    """,
    "evaluation between": """
        def losses(model, step):
            left, right = model(x)
            with torch.no_grad():
                model(x)
            yield (left - right).pow(2).mean()

        train(losses, Net())
    """,
    "a gradient taken aside": """
        def losses(model, step):
            left, right = model(x)
            torch.autograd.grad(left.sum(), [*model.module.left.parameters()], retain_graph=True)
            yield (left - right).pow(2).mean()

        train(losses, Net())
    """,
    "two models": """
        def losses(judge, step):
            made = model(x)
            judge(made.detach()).mean().backward()
            its.step()
            its.zero_grad()
            yield judge(made).mean()

        model = DistributedDataParallel(nn.Linear(4, 4))
        its = torch.optim.SGD(model.parameters(), lr=0.1)
        train(losses, nn.Linear(4, 1), steps=60)
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
    certainty = "predicted" if "within it" in marked else "certain"
    assert (found.code, found.certainty, last.count) == ("GS602", certainty, 1)
    assert named(found) == names
    assert marked in found.related[0].message


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

def work(rank):
    dist.init_process_group("gloo", f"file://{os.getcwd()}/store", rank=rank, world_size=2)
    net = torch.nn.ModuleDict({"left": torch.nn.Linear(4, 1), "right": torch.nn.Linear(4, 1)})
    net.forward = lambda x: net["right" if rank else "left"](x)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        loss = model(torch.randn(8, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()

context = mp.get_context("fork")
processes = [context.Process(target=work, args=(rank,)) for rank in range(2)]
for process in processes:
    process.start()
for process in processes:
    process.join()
"""


@pytest.mark.full
def test_a_branch_that_differs_by_rank(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
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
    assert said == expected, report["findings"]


def test_a_call_that_was_not_looked_at_is_explained_after_it(tmp_path: Path) -> None:
    late = "train(lambda *at: both(*at) if at[1] < 50 else each(*at), Net(), steps=60)"
    (found,), _, error = found_in(program(late), tmp_path)
    assert (found.code, found.certainty, found.missed) == ("GS602", "observed", False)
    assert named(found) == "scale"
    assert gs602.index_in(error) == 0
    check_wording(found)


def test_where_nothing_is_known_of_the_module_the_error_is_explained_even_so() -> None:
    call = BackwardCall(3, "backward", None)
    found = gs602.finding(gs602.MarkedTwice(call, is_raised=True, rank=(1, 2)))
    assert found.message == "a parameter was marked as ready twice on rank 1"
    check_wording(found)
    check_wording(gs603.finding(gs603.Unfinished(("parameter 3",), raised=Site("train.py", 3))))

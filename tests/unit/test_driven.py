"""A library that runs the user's functions in a loop: what is said of calls that it makes itself."""

from __future__ import annotations

import linecache
import re
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch._dynamo  # noqa: F401 - an optimizer imports it, and while it does no line is watched

import gradscope
from gradscope.model import Finding
from tests import known

LIBRARY = """
import torch


def fit(model, steps=4):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index in range(steps):
        loss = model.training_step(torch.ones(2, 3), index)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if hasattr(model, "after_step"):
            model.after_step()


class Trainer:
    def __init__(self, network):
        self.network = network

    def train(self):
        for index in range(4):
            self.loss_of(torch.ones(2, 3)).backward()


def backward(loss):
    loss.backward()


def backward_in_parts(loss):
    for scale in (1.0,):
        loss.backward(torch.tensor(scale))


def run(update):
    index = 0
    while index < 4:
        update(index)
        index += 1
"""

MODEL = """
import fitter
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = torch.nn.RNNCell(3, 3)
        self.state = None

{methods}

torch.manual_seed(0)
model = Model()
fitter.fit(model)
"""


@pytest.fixture(autouse=True)
def library() -> Iterator[None]:
    """Install a library without writing a file: its code says that it comes from where they are."""
    file = str(Path(sysconfig.get_path("purelib")) / "fitter.py")
    module = types.ModuleType("fitter")
    module.__file__ = file
    linecache.cache[file] = (len(LIBRARY), None, LIBRARY.splitlines(keepends=True), file)
    exec(compile(LIBRARY, file, "exec"), module.__dict__)
    sys.modules["fitter"] = module
    yield
    del sys.modules["fitter"], linecache.cache[file]


def found_in(text: str, folder: Path) -> tuple[list[Finding], str]:
    """Run a program under a watch; return its warnings and errors, and what it raised."""
    path = folder / "train.py"
    path.write_text(text, encoding="utf-8")
    raised = ""
    main = types.ModuleType("__main__")
    main.__file__ = str(path)
    kept, sys.modules["__main__"] = sys.modules["__main__"], main
    try:
        with gradscope.watch() as scope:
            try:
                exec(compile(text, str(path), "exec"), main.__dict__)
            except RuntimeError as error:
                raised = str(error)
            assert not scope.recording().summary.notes
    finally:
        sys.modules["__main__"] = kept
        main.__dict__.clear()
    return [f for f in scope.findings if f.severity.value != "advice"], raised


def line_of(finding: Finding) -> int:
    return finding.site.line if finding.site is not None else 0


HAZARDS = {
    "a state that the step stores": """
    def training_step(self, x, index):
        state = self.cell(x, self.state)
        self.state = state  # head
        return state.sum()
""",
    "a state that forward stores where it trains": """
    def training_step(self, x, index):
        return self(x).pow(2).sum()

    def forward(self, x):
        state = torch.tanh(x) if self.state is None else torch.tanh(x + self.state)
        state = self.cell(x, state)
        if self.training:
            self.state = state  # head
        return state
""",
    "a memory that training alone reads and stores": """
    def training_step(self, x, index):
        summary = self.cell(x).mean(0)
        if self.training:
            if self.state is not None:
                summary = 0.5 * self.state + 0.5 * summary
            self.state = summary  # head
        return summary.sum()
""",
    "both states of an LSTM": """
        self.cell = torch.nn.LSTMCell(3, 3)

    def training_step(self, x, index):
        state = self.cell(x, self.state)
        self.state = state  # head
        return state[0].sum()
""",
    "features in a list": """
        self.state = []

    def training_step(self, x, index):
        features = self.cell(x)
        self.state.append(features)  # head
        return torch.stack(self.state).pow(2).sum()
""",
    "what __init__ computed once": """
        self.scale = torch.nn.Parameter(torch.ones(3))
        self.state = self.scale.sigmoid()  # head

    def training_step(self, x, index):
        return (self.cell(x) * self.state).sum()
""",
    "a state in the loss alone": """
    def training_step(self, x, index):
        loss = self.cell(x).pow(2).sum()
        if self.state is not None:
            loss = loss + (loss - self.state) ** 2
        self.state = loss  # head
        return {"loss": loss}["loss"]
""",
}


@pytest.mark.parametrize("methods", HAZARDS.values(), ids=HAZARDS)
def test_a_hazard_in_a_fitted_model_is_told_early_at_the_users_line(
    methods: str, tmp_path: Path
) -> None:
    text = MODEL.format(methods=methods)
    found, raised = found_in(text, tmp_path)
    assert "a second time" in raised
    assert [f.code for f in found] == ["GS102", "GS101"]
    head = next(i for i, line in enumerate(text.splitlines(), 1) if "# head" in line)
    assert [line_of(f) for f in found] == [head, head]
    assert found[0].backward_call == 1
    assert re.search(r"`(self|model)\.state", found[0].label)
    assert "leads to" in found[0].label
    calls = {
        note.site.line for note in found[0].related if note.role == "failing_node" and note.site
    }
    assert calls == {len(text.splitlines())}  # where the library was called


def test_what_builds_on_a_freed_graph_says_where_the_library_was_called_and_comes_true(
    tmp_path: Path,
) -> None:
    methods = """
    def training_step(self, x, index):
        loss = self.cell(x).pow(2).sum()
        if loss.item() > -1:  # so the first call's warning is not sure
            average = loss if self.state is None else 0.9 * self.state + 0.1 * loss
            self.state = average
            loss = loss + (loss - average) ** 2
        return loss
"""
    text = MODEL.format(methods=methods)
    (early, late), raised = found_in(text, tmp_path)
    assert "a second time" in raised
    assert (early.code, late.code) == ("GS103", "GS101")
    (call,) = (note.site for note in early.related if note.role == "next_read")
    assert known(call).line == len(text.splitlines())
    assert early.came_true


@pytest.mark.parametrize("kind", list(HAZARDS)[:2])
def test_what_it_says_mends_it(kind: str, tmp_path: Path) -> None:
    text = MODEL.format(methods=HAZARDS[kind])
    fix = known(found_in(text, tmp_path)[0][0].fix)
    assert (fix.kind, fix.edits) == ("detach", ())
    assert fix.message.startswith("detach() `self.state`, carried from one iteration")
    mended = text.replace("self.state = state", "self.state = state.detach()")
    assert found_in(mended, tmp_path) == ([], "")


def test_it_is_told_where_the_step_still_trains_through_what_it_stored(tmp_path: Path) -> None:
    methods = """
    def training_step(self, x, index):
        state = self.cell(x, self.state)
        self.state = state
        return self.state.sum()
"""
    found, _ = found_in(MODEL.format(methods=methods), tmp_path)
    assert [f.code for f in found] == ["GS102", "GS101"]
    assert known(found[0].fix).kind == "detach"


SILENT = {
    "the newest only": """
        self.state = []

    def training_step(self, x, index):
        self.state = self.state[-1:]
        loss = self.cell(x).sum() + sum(t.sum() for t in self.state)
        self.state.append(loss.detach())
        return loss
""",
    "a deque with room for one": """
        self.state = __import__("collections").deque(maxlen=1)

    def training_step(self, x, index):
        self.state.append(self.cell(x))
        return torch.stack([*self.state]).pow(2).sum()
""",
    "both states of an LSTM, detached": """
        self.cell = torch.nn.LSTMCell(3, 3)

    def training_step(self, x, index):
        state = self.cell(x, self.state)
        self.state = tuple(part.detach() for part in state)
        return state[0].sum()
""",
    "a list that is emptied": """
        self.state = []

    def training_step(self, x, index):
        self.state.append(self.cell(x))
        return torch.stack(self.state).pow(2).sum()

    def after_step(self):
        self.state.clear()
""",
    "detached where it is stored": """
    def training_step(self, x, index):
        state = self.cell(x, self.state)
        self.state = state.detach()
        return state.sum()
""",
    "detached after the step": """
    def training_step(self, x, index):
        state = self.cell(x, self.state)
        self.state = state
        return state.sum()

    def after_step(self):
        self.state = self.state.detach()
""",
    "detached in place after the step": """
    def training_step(self, x, index):
        self.state = self.cell(x, self.state)
        return self.state.sum()

    def after_step(self):
        self.state.detach_()
""",
    "only looked at": """
    def training_step(self, x, index):
        if self.state is not None:
            print(self.state.item())
        self.state = self.cell(x).sum()
        return self.state
""",
    "read under a condition that no longer holds": """
    def training_step(self, x, index):
        loss = self.cell(x).sum()
        if index > 100:
            loss = loss + self.state
        self.state = loss
        return loss
""",
    "read in a validation that does not run": """
    def training_step(self, x, index):
        self.state = self.cell(x).sum()
        return self.state

    def validation_step(self, x, index):
        return self.cell(x).sum() + self.state
""",
    "read by a method that was not run": """
    def training_step(self, x, index):
        self.state = self.cell(x)
        return self.state.sum()

    def distance(self, x):
        return (x - self.state).pow(2).sum()
""",
    "read for logging without gradients": """
    def training_step(self, x, index):
        with torch.no_grad():
            self.drift = 0.0 if self.state is None else self.cell(x, self.state).sum()
        self.state = self.cell(x)
        return self.state.sum() + self.drift
""",
}


@pytest.mark.parametrize("methods", SILENT.values(), ids=SILENT)
def test_healthy_models_are_not_blamed(
    methods: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert found_in(MODEL.format(methods=methods), tmp_path) == ([], "")


LATE = {
    "another function resets it now and then": """
    def training_step(self, x, index):
        state = self.cell(x, self.state)  # head
        self.state = state
        return state.sum()

    def start_of_epoch(self):
        self.state = None
""",
    "read under a condition that holds later": """
    def training_step(self, x, index):
        loss = self.cell(x).sum()
        if index > 0:
            loss = loss * self.state  # head
        self.state = loss
        return loss
""",
}


@pytest.mark.parametrize("methods", LATE.values(), ids=LATE)
def test_what_does_not_come_in_each_iteration_is_told_early(methods: str, tmp_path: Path) -> None:
    text = MODEL.format(methods=methods)
    found, raised = found_in(text, tmp_path)
    assert raised
    assert [f.code for f in found] == ["GS102", "GS101"]
    assert "`self.state`" in found[0].label
    assert found[0].backward_call == 1


def test_nothing_is_foretold_in_the_last_iteration(tmp_path: Path) -> None:
    text = MODEL.format(methods=HAZARDS["a state that the step stores"])
    text = text.replace("fit(model)", "fit(model, steps=1)")
    assert found_in(text, tmp_path) == ([], "")


def test_a_model_that_calls_a_library_which_trains_it(tmp_path: Path) -> None:
    text = """
import fitter
import torch

class Mine(fitter.Trainer):
    average = None

    def loss_of(self, x):
        loss = self.network(x).pow(2).sum()
        average = loss if self.average is None else 0.9 * self.average + 0.1 * loss
        self.average = average
        return loss + (loss - average) ** 2

def main():
    trainer = Mine(torch.nn.Linear(3, 1))
    trainer.train()

main()
"""
    found, raised = found_in(text, tmp_path)
    assert raised
    assert [(f.code, line_of(f)) for f in found] == [("GS102", 11), ("GS101", 11)]
    assert "`self.average`" in found[0].label


@pytest.mark.parametrize("backward", ["backward", "backward_in_parts"])
def test_a_call_that_the_user_asks_a_library_for_is_the_users(
    backward: str, tmp_path: Path
) -> None:
    text = f"""
import fitter
import torch

state = None
cell = torch.nn.RNNCell(3, 3)
for index in range(4):
    state = cell(torch.ones(2, 3), state)
    loss = state.sum()
    fitter.{backward}(loss)
"""
    found, raised = found_in(text, tmp_path)
    assert raised
    assert {line_of(f) for f in found} == {10}


UPDATE = """
import fitter
import torch

network = torch.nn.Linear(3, 3)
kept = {{"state": torch.zeros(2, 3)}}

def update(index):
    state = torch.tanh(network(torch.ones(2, 3)) + kept["state"])
    state.pow(2).sum().backward()
    {store}

fitter.run(update)
"""


def test_what_an_update_function_leaves_behind_is_read_in_its_next_run(tmp_path: Path) -> None:
    found, raised = found_in(UPDATE.format(store='kept["state"] = state'), tmp_path)
    assert raised
    assert [(f.code, f.backward_call) for f in found] == [("GS102", 1), ("GS101", 2)]
    assert re.search(r"`kept\['state'\]`", found[0].label)


@pytest.mark.parametrize(
    "store", ['kept["state"] = state.detach()', 'kept["state"] = state; kept["state"] = state * 0']
)
def test_what_an_update_function_replaces_is_not_read(store: str, tmp_path: Path) -> None:
    found, raised = found_in(UPDATE.format(store=store), tmp_path)
    assert bool(raised) == ("* 0" in store)
    assert bool(found) == bool(raised)

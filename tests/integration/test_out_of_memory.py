"""A program that runs out of memory: what the report says of it first, with the line, and that it changes nothing."""

from __future__ import annotations

import contextlib
import gc
import json
import linecache
import sys
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from torch import nn

import gradscope
from gradscope.model import Finding
from gradscope.rules.gs401 import RULE
from tests import examples, known
from tests.command import gradscope as command
from tests.command import ran, ran_well
from tests.zygote import python

limited = pytest.mark.skipif(sys.platform != "linux", reason="limits a process as Linux does")

HEAD = """
import resource
import torch
from torch import nn

def leave(mib):
    pages = int(open("/proc/self/statm").read().split()[0])
    most = pages * resource.getpagesize() + mib * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(2048, 256), torch.randn(2048, 1)

def step(x, y):
    loss = nn.functional.mse_loss(model(x), y)  # forward
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

for _ in range({before}):
    step(x, y)
leave({mib})
"""

GROWING = """
losses = []
for _ in range(1000):
    step(x, y)
    losses.append(nn.functional.mse_loss(model(x), y))  # cause
"""

EVALUATION = """
model.eval()
total = 0
for _ in range(1000):
    total = total + nn.functional.mse_loss(model(x), y)  # cause
"""

PASSING = """
model.eval()
hits = 0
for size in (256, 512, 1024, 2048, 2**20):
    out = model(torch.randn(size, 256))  # cause
    hits += int((out > 0).sum())
"""

BATCH = """
for size in (64, 128, 120_000, 64):
    step(torch.randn(size, 256), torch.randn(size, 1))
"""

RETAINED = """
def run(size):
    x, y = torch.randn(size, 256), torch.randn(size, 1)
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward(retain_graph=True)  # cause
    return loss

loss, size = None, 2048
while True:
    for _ in range(8):
        loss = run(size)
    size *= 2
"""

ELSEWHERE = """
weights = torch.empty(2**45)  # cause
"""

KEEPS = "`losses` keeps the graphs of earlier iterations alive"
TOTAL = "`total` keeps the graphs of earlier iterations alive"
NEVER_RUN = "graphs are built here and no backward call goes through them"


def program(text: str, before: int, mib: int) -> str:
    return HEAD.format(before=before, mib=mib) + text


def line_of(text: str, mark: str) -> int:
    return next(i for i, line in enumerate(text.splitlines(), 1) if line.endswith(f"# {mark}"))


def found(text: str, folder: Path, *options: str) -> tuple[str, list[str]]:
    """Run a program; return the error that ended it, and the report on that one with lines put together."""
    script = folder / "train.py"
    script.write_text(text, encoding="utf-8")
    done = command("run", "--no-rehearsal", *options, script, cwd=folder, COLUMNS="200")
    assert done.returncode == 1
    assert "DefaultCPUAllocator: can't allocate memory" in done.stderr
    error = next(line for line in done.stderr.splitlines() if line.startswith("RuntimeError"))
    assert "failed in gradscope" not in done.stderr
    report = done.stderr[done.stderr.index("error[GS401]") :]
    return error, report[: report.index("\n\n")].splitlines()


@limited
@pytest.mark.full(but=4)
@pytest.mark.parametrize("before", [1, 40], ids=["hooked", "lifted"])
@pytest.mark.parametrize(
    ("text", "mib", "says", "mark", "helps"),
    [
        pytest.param(GROWING, 200, KEEPS, "cause", "store .detach() or .item()", id="growing"),
        pytest.param(EVALUATION, 200, TOTAL, "cause", "under torch.no_grad()", id="evaluation"),
        pytest.param(PASSING, 1200, NEVER_RUN, "cause", "under torch.no_grad()", id="passing"),
        pytest.param(
            BATCH,
            700,
            "one batch is too large",
            "forward",
            "one of the 120,000 samples",
            id="batch",
        ),
        pytest.param(
            RETAINED,
            200,
            "retain_graph=True is not needed here",
            "cause",
            "remove retain_graph=True",
            id="retained",
        ),
    ],
)
def test_the_report_leads_with_the_cause_and_its_line(
    text: str, mib: int, says: str, mark: str, helps: str, before: int, tmp_path: Path
) -> None:
    text = program(text, before, mib)
    _, (first, second, *rest) = found(text, tmp_path)
    assert first == f"error[GS401]: out of memory: {says}"
    assert second.split(":")[:2] == ["  --> train.py", str(line_of(text, mark))]
    assert helps in next(line for line in rest if line.startswith("help: "))
    assert any(line.startswith("note: the graph ") for line in rest)
    assert any(line.startswith("note: torch could not allocate ") for line in rest)


@limited
def test_the_program_raises_and_prints_what_it_does_without(tmp_path: Path) -> None:
    text = program(BATCH, 1, 700)
    error, _ = found(text, tmp_path)
    plain = ran(python(), tmp_path / "train.py", cwd=tmp_path)
    assert plain.stderr.splitlines()[-1] == error
    assert plain.stdout == ""


@limited
def test_the_machine_is_told_the_same(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(program(BATCH, 1, 700), encoding="utf-8")
    done = command(
        "run", "--no-rehearsal", "--format=json", "--output=out.json", "train.py", cwd=tmp_path
    )
    assert done.returncode == 1
    (finding,) = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["findings"]
    assert (finding["code"], finding["severity"], finding["certainty"]) == (
        "GS401",
        "error",
        "observed",
    )
    assert finding["location"]["line"] == line_of(program(BATCH, 1, 700), "forward")
    assert finding["bytes"] == 120_000 * 256 * 4
    assert finding["fix"]["kind"] == "smaller_batch"
    roles = {one["role"] for one in finding["related"]}
    assert roles == {"created", "failing_node"}


NEVER_CALLED = """
losses = []
for _ in range(1000):
    losses.append(nn.functional.mse_loss(model(x), y))  # cause
"""


@limited
def test_a_list_that_grows_is_the_cause_before_any_backward_call(tmp_path: Path) -> None:
    text = program(NEVER_CALLED, 0, 300)
    _, (first, second, *_) = found(text, tmp_path)
    assert first == f"error[GS401]: out of memory: {KEEPS}"
    assert f"train.py:{line_of(text, 'cause')}:" in second


@limited
def test_what_an_evaluation_keeps_is_weighed_without_hooks(tmp_path: Path) -> None:
    _, lines = found(program(EVALUATION, 40, 200), tmp_path)
    (held,) = (line for line in lines if line.startswith("note: `total` holds"))
    assert " MiB of tensors; each iteration adds 7 nodes, 8" in held


@limited
def test_what_graphs_do_not_hold_is_not_blamed_on_them(tmp_path: Path) -> None:
    text = program(ELSEWHERE, 1, 200)
    _, (first, second, *_) = found(text, tmp_path)
    assert first == "error[GS401]: out of memory: the live graphs do not explain it"
    assert f"train.py:{line_of(text, 'cause')}:" in second


@limited
@pytest.mark.parametrize(("text", "mib"), [(GROWING, 200), (BATCH, 700), (RETAINED, 200)])
def test_without_hooks_the_cause_is_the_same(text: str, mib: int, tmp_path: Path) -> None:
    text = program(text, 1, mib)
    _, (first, second, *_) = found(text, tmp_path)
    _, lines = found(text, tmp_path, "--no-hooks")
    assert lines[0] == first
    assert lines[1].split(":")[:2] == second.split(":")[:2]


@limited
def test_one_that_is_caught_is_the_program_s_own(tmp_path: Path) -> None:
    caught = f"{program('', 3, 700)}\ntry:\n    torch.empty(2**45)\nexcept RuntimeError:\n    print('smaller')"
    (tmp_path / "train.py").write_text(caught, encoding="utf-8")
    done = command("run", "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "smaller\n")
    assert "GS401" not in done.stderr


def codes(example: str, folder: Path) -> list[str]:
    (folder / "example.py").write_text(example, encoding="utf-8")
    command("run", "--no-rehearsal", "--format=json", "--output=out.json", "example.py", cwd=folder)
    findings = json.loads((folder / "out.json").read_text(encoding="utf-8"))["findings"]
    return [finding["code"] for finding in findings]


def test_the_bad_example_has_this_finding_and_no_other(tmp_path: Path) -> None:
    assert codes(examples.bad(RULE), tmp_path) == [RULE.code]


def test_the_good_example_has_none(tmp_path: Path) -> None:
    assert codes(examples.good(RULE), tmp_path) == []


def test_the_page_is_shown() -> None:
    shown = ran_well(*(python(), "-m", "gradscope", "explain", "GS401")).stdout
    assert "out-of-memory" in shown
    assert "torch.utils.checkpoint" in shown


def full(
    asked: str = "Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.11 GiB",
) -> None:
    raise torch.cuda.OutOfMemoryError(f"CUDA out of memory. {asked}")


def explained(work: Callable[[], None]) -> Finding:
    """Return the finding of a watch that an accelerator's error leaves."""
    with pytest.raises(torch.cuda.OutOfMemoryError), gradscope.watch() as scope:
        work()
    notes = scope.recording().summary.notes
    assert not [note for note in notes if "failed" in note]
    (finding,) = (each for each in scope.findings if each.code == "GS401")
    return finding


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 4096), nn.Tanh(), nn.Linear(4096, 1))


def test_what_an_accelerator_raises_out_of_a_watch_is_explained() -> None:
    model = layers()

    def work() -> None:
        for _ in range(3):
            model(torch.randn(1024, 64)).mean().backward()
        loss = model(torch.randn(1024, 64)).mean()
        full()
        loss.backward()

    finding = explained(work)
    assert finding.message == "out of memory: one batch is too large"
    assert finding.bytes >= 1024 * 4096 * 4
    told = [related.message for related in finding.related]
    assert "torch could not allocate 20 MiB here" in told
    assert any("by TanhBackward0" in text for text in told)
    assert (
        "dropping one of the 1,024 samples (first dimension) saves 16.2 KiB"
        in finding.fixes[-1].message
    )


def test_what_went_with_an_expression_is_counted() -> None:
    model = layers()

    def work() -> None:
        (model(torch.randn(1024, 64)) - full_of()).mean().backward()

    def full_of() -> torch.Tensor:
        full()
        raise AssertionError

    finding = explained(work)
    assert finding.message == "out of memory: one batch is too large"
    (gone,) = (each.message for each in finding.related if "held 16.2 MiB before" in each.message)
    assert gone.endswith("gone when the error came")


def test_losses_that_are_added_up_before_a_call_are_no_leak() -> None:
    models = [layers() for _ in range(4)]

    def work() -> None:
        for step in range(3):
            losses = [model(torch.randn(64, 64)).mean() for model in models]
            if step == 2:
                full()
            torch.stack(losses).sum().backward()

    assert explained(work).message == "out of memory: one batch is too large"


def test_a_graph_that_is_kept_and_run_again_is_not_blamed() -> None:
    model = layers()

    def work() -> None:
        for step in range(6):
            loss = model(torch.randn(64, 64)).mean()
            loss.backward(retain_graph=True)
            if step == 5:
                full()
            loss.backward()

    finding = explained(work)
    assert "retain_graph" not in finding.message
    assert any(
        related.message.startswith("`loss` holds another graph") for related in finding.related
    )


def test_a_line_that_builds_no_graph_is_no_evaluation() -> None:
    model = layers()

    def work() -> None:
        for step in range(40):
            out = model(torch.randn(1024, 64)).mean()
            if step == 39:
                full()
            out.backward()

    assert explained(work).message == "out of memory: one batch is too large"


def test_a_first_batch_in_training_mode_is_no_evaluation() -> None:
    model = layers()

    def work() -> None:
        out = model(torch.randn(1024, 64))
        full()
        del out

    assert explained(work).message == "out of memory: one batch is too large"


def test_graphs_are_not_blamed_that_hold_little_of_what_torch_has_allocated() -> None:
    model = layers()

    def work() -> None:
        out = model(torch.randn(1024, 64))
        full(
            "Tried to allocate 20.00 MiB. Of the allocated memory 76.50 GiB is allocated by PyTorch"
        )
        del out

    finding = explained(work)
    assert finding.message == "out of memory: the live graphs do not explain it"
    assert finding.label == "tried to allocate 20 MiB here; all graphs hold 16.2 MiB of 76.5 GiB"


def test_the_modules_to_checkpoint_are_those_that_alone_need_most() -> None:
    def block() -> nn.Module:
        return nn.Sequential(
            nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 64)
        )

    model = nn.Sequential(nn.Linear(8, 64), nn.Sequential(*(block() for _ in range(4))))

    def work() -> None:
        out = model(torch.randn(1024, 8))
        full()
        del out

    checkpoint = explained(work).fixes[0].message
    assert checkpoint.startswith(
        "run each of the 4 modules in `model.1` under torch.utils.checkpoint: about "
    )
    assert checkpoint.endswith(" MiB less, 20 operations or more run again")


def test_it_leads_what_is_found_at_the_end() -> None:
    model = layers()

    def work() -> None:
        kept = []
        for _ in range(6):
            model(torch.randn(64, 64)).mean().backward()
            kept.append(model(torch.randn(64, 64)).mean())
        full()

    with pytest.raises(torch.cuda.OutOfMemoryError), gradscope.watch() as scope:
        work()
    assert [finding.code for finding in scope.findings] == ["GS401", "GS302"]


def test_where_calls_were_not_looked_at_no_count_is_claimed() -> None:
    model = layers()

    def work() -> None:
        kept = []
        for _ in range(100):
            model(torch.randn(64, 64)).mean().backward()
            kept.append(model(torch.randn(64, 64)).mean())
        full()

    with pytest.raises(torch.cuda.OutOfMemoryError), gradscope.watch(budget=0.5) as scope:
        work()
    finding = scope.findings[0]
    assert "not inspected" in scope.summary.notes[0]
    assert finding.message == "out of memory: `kept` keeps the graphs of earlier iterations alive"
    assert finding.label.startswith("keeps graphs of at least ")
    assert finding.bytes >= 100 * 64 * 4096 * 4
    assert not any("with each iteration" in related.message for related in finding.related)


def test_what_is_kept_is_not_called_useless_where_calls_were_not_looked_at() -> None:
    model = layers()

    def work() -> None:
        for step in range(100):
            loss = model(torch.randn(64, 64)).mean()
            loss.backward(retain_graph=True)
            if step == 99:
                full()
            loss.backward()

    with pytest.raises(torch.cuda.OutOfMemoryError), gradscope.watch(budget=0.5) as scope:
        work()
    assert [finding.code for finding in scope.findings] == ["GS401"]
    assert "retain_graph" not in scope.findings[0].message


def test_it_keeps_nothing() -> None:
    model = layers()
    alive: list[weakref.ref[torch.Tensor]] = []

    def work() -> None:
        out = model(torch.randn(64, 64))
        alive.append(weakref.ref(out))
        full()

    explained(work)
    gc.collect()
    assert alive[0]() is None


def trains_with(sizes: Iterable[int]) -> None:
    """Train with batches of these sizes, of which those above 300 do not fit; take the next one then."""
    model = layers()

    def step(size: int) -> None:
        loss = model(torch.randn(size, 64)).mean()
        if size > 300:
            full()
        loss.backward()

    for size in sizes:
        with contextlib.suppress(torch.cuda.OutOfMemoryError):
            step(size)


def test_a_smaller_batch_after_the_error_is_advice_told_once() -> None:
    with gradscope.watch() as scope:
        trains_with([1024, 512, 256, 256, 1024, 256])
    (finding,) = scope.findings
    assert (finding.code, finding.severity, finding.count) == ("GS401", "advice", 1)
    assert finding.message == "out of memory, but the program caught it: one batch is too large"
    assert "model(torch.randn(size, 64))" in linecache.getline(__file__, known(finding.site).line)
    assert finding.fixes[-1].message.startswith(
        "take fewer samples at a time: dropping one of the 1,024 samples"
    )
    assert not scope.summary.notes


def test_one_that_no_call_follows_is_told_at_the_end() -> None:
    with gradscope.watch() as scope:
        trains_with([256, 1024])
    assert [finding.severity for finding in scope.findings] == ["advice"]


def test_one_that_was_caught_and_one_that_was_not_are_both_told() -> None:
    def work() -> None:
        trains_with([1024])
        full()

    with pytest.raises(torch.cuda.OutOfMemoryError), gradscope.watch() as scope:
        work()
    assert [finding.severity for finding in scope.findings] == ["error", "advice"]


def test_an_error_that_came_of_it_did_not_go_on() -> None:
    def work() -> None:
        try:
            full()
        except torch.cuda.OutOfMemoryError as error:
            raise ValueError("take a smaller batch") from error

    with pytest.raises(ValueError, match="smaller"), gradscope.watch() as scope:
        work()
    assert [finding.severity for finding in scope.findings] == ["error"]


def test_what_sees_the_error_is_taken_out() -> None:
    with gradscope.watch():
        assert "__init__" in vars(torch.cuda.OutOfMemoryError)
    assert "__init__" not in vars(torch.cuda.OutOfMemoryError)
    with pytest.raises(TypeError) as plain:
        torch.cuda.OutOfMemoryError(size=3)  # type: ignore[call-arg]
    with gradscope.watch(), pytest.raises(TypeError) as watched:
        torch.cuda.OutOfMemoryError(size=3)  # type: ignore[call-arg]
    assert str(watched.value) == str(plain.value)


@limited
def test_the_memory_of_such_a_recording_opens_there(tmp_path: Path) -> None:
    found(program(GROWING, 1, 200), tmp_path, "--save=run.gscope")
    shown = ran_well(
        *(python(), "-m", "gradscope", "report", "--memory", "run.gscope"), cwd=tmp_path
    )
    first, *rest = shown.stdout.splitlines()
    assert first.startswith("error[GS401]: out of memory: `losses` keeps the graphs")
    assert any(line.startswith("memory: ") for line in rest)

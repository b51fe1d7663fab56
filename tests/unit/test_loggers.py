"""The figures of a watch reach the tools that it was given, in time, and what fails there stays there."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sysconfig
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gradscope
from gradscope.api import scope as scopes
from gradscope.errors import GradscopeError
from gradscope.record.file import load
from gradscope.record.loggers import FIGURES, MetricsFile

Told = list[tuple[str, float, int]]


def step() -> torch.Tensor:
    loss = (torch.ones(3, requires_grad=True) * 2).exp().sum()
    loss.backward(retain_graph=True)
    return loss


def twice() -> None:
    loss = torch.ones(3, requires_grad=True).exp().sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def taking(told: Told) -> Callable[[str, float, int], None]:
    return lambda *given: told.append(given)


def rounds(told: Told) -> list[tuple[int, ...]]:
    """The figures of each time."""
    values = [int(value) for _, value, _ in told]
    return [tuple(values[at : at + len(FIGURES)]) for at in range(0, len(values), len(FIGURES))]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(scopes, "monotonic", lambda: clock.now)
    return clock


def test_a_function_gets_each_figure_with_the_number_of_calls_as_its_step() -> None:
    told: Told = []
    with gradscope.watch(log=taking(told)):
        kept = [step() for _ in range(3)]
        assert told == [*zip(FIGURES, (1, 0, 12, 3, 12), [1] * 5, strict=True)]
    assert told[5:] == [*zip(FIGURES, (3, 0, 36, 9, 12), [3] * 5, strict=True)]
    assert kept


def test_figures_come_once_a_second_and_at_the_end(clock: SimpleNamespace) -> None:
    told: Told = []
    with gradscope.watch(log=taking(told)):
        for _ in range(40):
            step()
            clock.now += 0.125
    assert [each[0] for each in rounds(told)] == [1, 9, 17, 25, 33, 40]


def test_a_finding_counts_unless_it_is_suppressed() -> None:
    told: Told = []
    for ignore in ("", "GS101", "GS101,GS102"):
        with gradscope.watch(log=taking(told), ignore=ignore and ignore.split(",")):
            twice()
    assert [each[1] for each in rounds(told) if each[0] == 2] == [2, 1, 0]


def test_graphs_that_are_gone_leave_the_figures(clock: SimpleNamespace) -> None:
    told: Told = []
    with gradscope.watch(log=taking(told)) as scope:
        kept = [step() for _ in range(2)]
        for _ in range(300):
            kept[0] = step()
            clock.now += 1
        kept.clear()
    assert scope.summary.estimated_calls > 200  # the hooks were lifted meanwhile
    calls, _, *others = zip(*rounds(told), strict=True)
    assert calls == (1, *range(4, 303), 302)
    assert others == [(12, *[36] * 299, 0), (3, *[9] * 299, 0), (12,) * 301]


def test_nothing_is_told_of_a_watch_without_a_backward_call() -> None:
    told: Told = []
    with gradscope.watch(log=taking(told)):
        torch.ones(3, requires_grad=True).exp()
    assert not told


def test_without_a_log_nothing_is_called() -> None:
    with gradscope.watch(log=None) as scope:
        assert not scope._tells
        step()


def test_nested_watches_each_have_theirs() -> None:
    outer: Told = []
    inner: Told = []
    with gradscope.watch(log=taking(outer)):
        step()
        with gradscope.watch(log=[taking(inner), taking(inner)]):
            step()
        assert len(rounds(inner)) == 4
        step()
    assert len(rounds(inner)) == 4
    assert [each[0] for each in rounds(outer)] == [1, 3]


def test_threads_may_hand_on_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(scopes, "EVERY", 0)
    told: Told = []

    def slowly(name: str, value: float, step: int) -> None:
        time.sleep(0.001)
        told.append((name, value, step))

    tools = [slowly, MetricsFile(tmp_path / "train.prom")]
    with gradscope.watch(log=tools) as scope, ThreadPoolExecutor(4) as threads:
        for each in [threads.submit(step) for _ in range(40)]:
            each.result()
    assert len(told) == 41 * len(FIGURES)
    assert not scope.recording().summary.notes
    assert os.listdir(tmp_path) == ["train.prom"]


def test_a_watch_with_a_log_is_no_cycle() -> None:
    gc.disable()
    try:
        with gradscope.watch(log=lambda *_: None) as scope:
            step()
        gone = weakref.ref(scope.writer)
        del scope
        assert gone() is None
    finally:
        gc.enable()


class Board:
    """As a SummaryWriter."""

    def __init__(self) -> None:
        self.told: Told = []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.told.append((tag, scalar_value, global_step))


class Run:
    """With the signature of a run of W&B."""

    def __init__(self) -> None:
        self.told: list[dict[str, float]] = []

    def log(
        self, data: dict[str, float], step: int | None = None, commit: bool | None = None
    ) -> None:
        assert (step, commit) == (None, False)
        self.told.append(data)


class Flow:
    """With those of the module mlflow."""

    def __init__(self) -> None:
        self.run: object = None
        self.told: Told = []

    def active_run(self) -> object:
        return self.run

    def log_metric(self, key: str, value: float, step: int) -> None:
        raise AssertionError("all at once takes one request")

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.told += [(name, value, step) for name, value in metrics.items()]


def test_tools_are_told_apart_by_what_they_can_do() -> None:
    told: Told = []
    board, run, flow = Board(), Run(), Flow()
    with gradscope.watch(log=[board, run, flow, taking(told)]):
        step()
        assert not flow.told  # it has no run open
        flow.run = run
    assert rounds(told) == [(1, 0, 12, 3, 12), (1, 0, 0, 0, 12)]
    assert board.told == told
    assert [{name: value for name, value, _ in told[at : at + 5]} for at in (0, 5)] == run.told
    assert flow.told == told[5:]


@pytest.mark.parametrize("log", [3, "runs", [print, object()]])
def test_what_takes_no_figures_is_refused(log: object) -> None:
    with pytest.raises(GradscopeError, match=r"^log: an? \w+ takes no figures; give a Summ"):
        gradscope.watch(log=log)


def test_a_tool_that_fails_is_told_of_once_and_the_others_go_on(
    clock: SimpleNamespace, tmp_path: Path
) -> None:
    tries: Told = []
    told: Told = []

    def fail(name: str, value: float, step: int) -> None:
        tries.append((name, value, step))
        raise ConnectionError("no route to the server")

    save = tmp_path / "run.gscope"
    with gradscope.watch(log=[fail, logging.getLogger(), taking(told)], save=save) as scope:
        for _ in range(3):
            step()
            clock.now += 1
    first, second = notes = load(save).summary.notes
    assert notes == scope.recording().summary.notes
    assert first == (
        "logging failed, and is not tried again (ConnectionError: no route to the server)"
    )
    assert "TypeError" in second
    assert len(tries) == 1
    assert len(rounds(told)) == 4


def test_one_that_fails_at_the_end_is_told_of_too() -> None:
    def fail(name: str, value: float, step: int) -> None:
        if step > 1:
            raise OSError("closed")

    with gradscope.watch(log=fail) as scope:
        step()
        step()
    assert scope.recording().summary.notes == (
        "logging failed, and is not tried again (OSError: closed)",
    )


class RungError(Exception):
    pass


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="a system without such signals")
def test_what_a_handler_of_a_signal_raises_meanwhile_goes_on_its_way() -> None:
    source = "import signal\ndef write(*_):\n    signal.raise_signal(signal.SIGUSR1)\n"
    library = str(Path(sysconfig.get_paths()["purelib"], "some_tool.py"))
    module: dict[str, Any] = {}
    exec(compile(source, library, "exec"), module)

    def ring(*_: object) -> None:
        raise RungError

    before = signal.signal(signal.SIGUSR1, ring)
    try:
        with gradscope.watch(log=module["write"]) as scope:
            with pytest.raises(RungError):
                step()
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        assert not scope.recording().summary.notes
        signal.signal(signal.SIGUSR1, signal.default_int_handler)
        with pytest.raises(KeyboardInterrupt), gradscope.watch(log=module["write"]) as scope:
            step()
        assert scope.recording().outcome.finished
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_a_forked_child_tells_nothing(tmp_path: Path) -> None:
    file = tmp_path / "told"
    child = 0

    def tell(name: str, value: float, step: int) -> None:
        with file.open("a") as told:
            told.write(f"{os.getpid() == parent} ")

    parent = os.getpid()
    try:
        with gradscope.watch(log=tell):
            step()
            child = os.fork()
            step()
    finally:
        if not child:
            os._exit(0)
    os.waitpid(child, 0)
    assert set(file.read_text().split()) == {"True"}


# what the tools read


def test_tensorboard_reads_what_torchs_writer_was_given(tmp_path: Path) -> None:
    accumulator: Any = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="tensorboard is not installed",
    )
    tensorboard: Any = pytest.importorskip("torch.utils.tensorboard")
    told: Told = []
    writer = tensorboard.SummaryWriter(tmp_path)
    with writer, gradscope.watch(log=[writer, taking(told)]) as scope:
        step()
        step()
    assert not scope.recording().summary.notes
    read = accumulator.EventAccumulator(str(tmp_path))
    read.Reload()
    assert set(read.Tags()["scalars"]) == set(FIGURES)
    events = [(name, each.value, each.step) for name in FIGURES for each in read.Scalars(name)]
    assert sorted(events) == sorted(told)


@pytest.mark.parametrize("name", ["train.prom", 'a "b" \\.prom'])
def test_prometheus_reads_the_metrics(tmp_path: Path, name: str) -> None:
    openmetrics: Any = pytest.importorskip(
        "prometheus_client.openmetrics.parser", reason="prometheus_client is not installed"
    )
    older: Any = pytest.importorskip("prometheus_client.parser")
    file = tmp_path / name
    with gradscope.watch(log=MetricsFile(file)):
        step()
        first = file.read_text(encoding="utf-8")
        step()
    text = file.read_text(encoding="utf-8")
    assert os.listdir(tmp_path) == [name]  # and no temporary file
    assert text.endswith("\n# EOF\n")
    assert first != text
    families = {each.name: each for each in openmetrics.text_string_to_metric_families(text)}
    assert [family.type for family in families.values()] == ["counter", *["gauge"] * 4]
    assert all(family.documentation for family in families.values())
    samples = [sample for family in families.values() for sample in family.samples]
    assert {sample.labels["run"] for sample in samples} == {Path(name).stem}
    figures = {sample.name: sample.value for sample in samples}
    assert figures == {
        "gradscope_backward_calls_total": 2,
        "gradscope_findings": 0,
        "gradscope_live_bytes": 0,
        "gradscope_nodes": 0,
        "gradscope_retained_bytes": 12,
    }
    # The node exporter reads the older format, to which the last line is a comment.
    families = older.text_string_to_metric_families(text)
    assert {s.name: s.value for family in families for s in family.samples} == figures


def test_a_reader_never_finds_half_of_the_metrics(tmp_path: Path) -> None:
    file = tmp_path / "train.prom"
    metrics = MetricsFile(file)
    metrics.log_metrics(dict.fromkeys(FIGURES, 1), 1)
    with file.open(encoding="utf-8") as reader:
        first = reader.read(20)
        metrics.log_metrics(dict.fromkeys(FIGURES, 22), 1)
        assert "22" not in first + reader.read()
    assert file.read_text(encoding="utf-8").count(" 22\n") == len(FIGURES)


def test_a_disk_that_is_gone_is_told_of(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "gone" / "train.prom")
    with gradscope.watch(log=metrics) as scope:
        step()
    (note,) = scope.recording().summary.notes
    assert str(metrics.file) in note

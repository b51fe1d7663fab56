"""How fast memory grows: by step and by hour, of what kind, and when it is full."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from canned import canned_recording
from rich.console import Console

import gradscope
from gradscope.collect import available_memory
from gradscope.collect.available_memory import free_memory
from gradscope.model import Finding, Holding, Recording, Trend, outlook
from gradscope.render.memory import trends
from gradscope.render.text.report import print_memory, print_report
from gradscope.render.wording import whole_message
from gradscope.rules.base import NODE_BYTES
from tests import known

MIB, GIB = 1 << 20, 1 << 30


def trend(seconds: float = 10, mib: int = 100, free: int = GIB, device: str = "cpu") -> Trend:
    """100 steps that take ``seconds`` and add ``mib``, of which a tenth are outputs."""
    looks = [
        Holding(i, i * seconds / 100, 9 * mib * MIB * i // 1000, mib * MIB * i // 1000, 0)
        for i in (0, 50, 100)
    ]
    return Trend("history", tuple(looks), device, free)


def test_the_rate_is_told_by_step_and_by_hour_and_when_memory_is_full() -> None:
    one = trend()
    assert (one.each, one.hourly) == (MIB, 36_000 * MIB)
    rate, full = outlook([one])
    assert rate == "1 MiB per step, 35.2 GiB per hour"
    assert full == "at this rate memory is full in about 2 min (1,000 steps)"
    full = outlook([replace(one, device="cuda:1", free=200 * GIB)])[1]
    assert full == "at this rate the memory of cuda:1 is full in about 6 h (200,000 steps)"


def test_what_grows_together_fills_memory_sooner() -> None:
    alone, both = outlook([trend()]), outlook([trend(), trend()])
    assert both[0] == "2 MiB per step, 70.3 GiB per hour"
    assert alone[1].endswith("2 min (1,000 steps)")
    assert both[1].endswith("51 s (510 steps)")
    assert outlook([trend(), trend(mib=10, device="cuda:0")]) == alone


@pytest.mark.parametrize(
    ("one", "rate"),
    [
        (trend(seconds=4), ""),
        (Trend("history", ()), ""),
        (trend(mib=0), ""),
        (trend(free=0), "1 MiB per step, 35.2 GiB per hour"),
        (trend(seconds=100_000), "1 MiB per step, 3.6 MiB per hour"),
    ],
    ids=["too short", "never looked", "does not grow", "not known what is free", "in many days"],
)
def test_nothing_is_said_of_the_end_where_that_is_not_known_or_far(one: Trend, rate: str) -> None:
    assert outlook([one]) == (rate, "")
    assert outlook([]) == ("", "")


def grows(one: Trend) -> Recording:
    """A run with a finding about what grows so."""
    canned = canned_recording()
    told = replace(
        canned.findings[0], code="GS302", severity=gradscope.model.Severity.WARNING, trend=one
    )
    return replace(canned, findings=(told,))


@pytest.mark.parametrize("width", [60, 80])
def test_the_reports_tell_it(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_memory(grows(trend()), console)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert lines[0] == "growing, and kept in all"
    assert lines[1].split() == ["graphs", "outputs", "nodes", "per", "step", "per", "hour"]
    assert lines[2].split() == [
        "history",
        "90",
        "MiB",
        "10",
        "MiB",
        "0",
        "B",
        "1",
        "MiB",
        "35.2",
        "GiB",
    ]
    assert all(len(line) <= width for line in lines)
    told = outlook([trend()])
    assert f"note: that is {told[0]}: {told[1]}" in whole_message(grows(trend()).findings[0])
    print_report(grows(trend()), console)
    assert "\ngrowing  1 MiB per step, 35.2 GiB per hour:" in console.file.getvalue()
    assert not trends(canned_recording())


def test_a_watched_leak_has_the_bytes_of_each_step() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, kept = torch.randn(16, 8), []
    with gradscope.watch() as scope:
        for _ in range(20):
            out = model(x)
            kept.append(out)
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
    (found,) = [each for each in scope.findings if each.trend]
    told = known(found.trend)
    assert told.holder == "kept"
    # Tanh saves its result, which is what is kept; Linear saves x, which all steps share.
    assert told.each == pytest.approx(16 * 64 * 4 + 3 * NODE_BYTES)
    last = told.looks[-1]
    assert (
        last.saved
        == told.looks[0].saved + (last.iterations - told.looks[0].iterations) * 16 * 64 * 4
    )
    assert [look.iterations for look in told.looks][:4] == [4, 6, 8, 12]
    assert last.nbytes == last.saved + last.nodes
    assert told.looks[0].modules.keys() == {"model.0", "model.1"}
    (saved,) = [each for each in scope.recording().findings if each.trend]
    assert saved.trend == told


def test_outputs_are_what_no_graph_has_saved() -> None:
    weight, kept = torch.randn(8, requires_grad=True), []
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with gradscope.watch() as scope:
        for _ in range(12):
            kept.append(weight * 2)
            optimizer.zero_grad()
            (weight * weight).sum().backward()
            optimizer.step()
    (found,) = [each for each in scope.findings if each.trend]
    last = known(found.trend).looks[-1]
    assert last.outputs == 8 * 4 * len(kept[: last.nodes // NODE_BYTES])
    assert last.saved < last.outputs


def test_more_entries_than_a_look_sees_are_reckoned_in_proportion() -> None:
    weight, kept = torch.randn(8, requires_grad=True), []
    optimizer, seen = torch.optim.SGD([weight], lr=0.1), []
    with gradscope.watch() as scope:
        for _ in range(210):
            kept.append((weight * weight).exp())
            optimizer.zero_grad()
            (weight * weight).sum().backward()
            optimizer.step()
        seen = [known(each.trend) for each in scope.findings if each.trend]
    (before,), (after,) = seen, [known(e.trend) for e in scope.findings if e.trend]
    assert [look.iterations for look in before.looks][-3:] == [96, 128, 192]
    assert before.looks[-1].modules == {}
    assert before.looks[-1].nbytes == pytest.approx(192 * before.each, rel=0.01)
    # The last look sees all of them.
    assert after.looks[-1].iterations > 200
    assert after.each == pytest.approx(before.each, rel=0.01)


def test_without_iterations_there_is_no_rate() -> None:
    weight, kept = torch.randn(8, requires_grad=True), []
    with gradscope.watch() as scope:
        for _ in range(40):
            out = (weight * weight).exp()
            kept.append(out)
    (found,) = scope.findings
    assert (found.code, found.trend) == ("GS302", None)


def test_figures_come_up_to_date_while_the_leak_goes_on() -> None:
    weight, kept = torch.randn(8, requires_grad=True), []
    optimizer, seen = torch.optim.SGD([weight], lr=0.1), []
    with gradscope.watch() as scope:
        for _ in range(40):
            kept.append((weight * weight).exp())
            optimizer.zero_grad()
            (weight * weight).sum().backward()
            optimizer.step()
            seen += [len(known(each.trend).looks) for each in scope.findings if each.trend]
    assert seen[0] == 3
    assert max(seen) > 5  # after 12, 16, 24 and 32 iterations
    assert seen == sorted(seen)
    assert len(scope.findings) == 1


# what is free


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of ``/``, of a machine with 100 KiB to give."""
    monkeypatch.setattr(
        available_memory, "Path", lambda first, *more: tmp_path.joinpath(first.lstrip("/"), *more)
    )
    write(tmp_path / "proc/meminfo", "MemTotal: 900 kB\nMemAvailable:   100 kB\n")
    return tmp_path


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_a_machine_has_what_is_available(system: Path) -> None:
    assert free_memory("cpu") == 100 * 1024
    (system / "proc/meminfo").unlink()
    assert free_memory("cpu") == 0


def test_a_control_group_may_allow_less(system: Path) -> None:
    write(system / "proc/self/cgroup", "0::/jobs/mine\n")
    group = system / "sys/fs/cgroup/jobs"
    write(group / "mine/memory.max", "max\n")
    write(group / "mine/memory.current", "5\n")
    assert free_memory("cpu") == 100 * 1024
    write(group / "memory.max", "50000\n")
    write(group / "memory.current", "30000\n")
    write(group / "memory.stat", "anon 7\ninactive_file 1000\n")
    assert free_memory("cpu") == 21_000


def test_so_may_one_of_the_first_version(system: Path) -> None:
    write(system / "proc/self/cgroup", "3:cpu:/x\n7:memory:/mine\n")
    group = system / "sys/fs/cgroup/memory/mine"
    for name, size in {"limit_in_bytes": 9000, "usage_in_bytes": 4000}.items():
        write(group / f"memory.{name}", f"{size}\n")
    write(group / "memory.stat", "total_inactive_file 500\n")
    assert free_memory("cpu") == 5500


def test_of_a_device_that_is_not_there_nothing_is_known() -> None:
    assert free_memory("xla:0") == free_memory("meta") == 0
    if not torch.cuda.is_available():
        assert free_memory("cuda:0") == 0


def test_only_what_counts_is_a_trend() -> None:
    one = grows(trend())
    (finding,) = one.findings
    gone: Finding = replace(finding, withdrawn="it was emptied")
    assert trends(one) == [trend()]
    assert not trends(replace(one, findings=(gone,)))

"""What grows, on the page in a real browser: layers, marks and their table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from canned import canned_recording

from gradscope.model import (
    BackwardCall,
    Certainty,
    Finding,
    Graph,
    Header,
    Holding,
    Node,
    Recording,
    SavedTensor,
    Severity,
    Site,
    Summary,
    Trend,
)

pytestmark = [pytest.mark.browser, pytest.mark.full]

Report = Any
Show = Callable[..., Report]

KIB, GIB = 1 << 10, 1 << 30
FILE = "/src/train.py"


def leak(holder: str, line: int, each: int) -> Finding:
    """A holder that keeps ``each`` bytes more with each step, a quarter of them outputs; of what it saved
    in the last look hooks have seen nothing.
    """
    looks = tuple(
        Holding(
            i, i, each * i * 3 // 4, each * i // 4, 0, {"net.a": 2, "net.b": 1} if i < 8 else {}
        )
        for i in (4, 6, 8)
    )
    about = "GS302", "graph-kept-alive", Severity.WARNING, Certainty.OBSERVED
    return Finding(
        *about, f"`{holder}` keeps", Site(FILE, line), trend=Trend(holder, looks, "cpu", GIB)
    )


def graph(samples: int) -> Graph:
    saved = SavedTensor("self", (samples, 4), "f32", "cpu", samples * KIB, 1)
    return Graph((Node(0, "TanhBackward0", sequence_nr=1, saved=(saved,)),), (), ())


def recording() -> Recording:
    """A run in which two lists grow, with graphs of 8 and 16 samples."""
    sizes = {1: 8, 2: 16}
    return Recording(
        Header("1", "2", "3", FILE),
        summary=Summary(backward_calls=2),
        calls=tuple(
            BackwardCall(
                n, "backward", Site(FILE, 1), graph=n, saved_bytes=size * KIB, last_number=n
            )
            for n, size in sizes.items()
        ),
        graphs={n: graph(size) for n, size in sizes.items()},
        findings=(leak("history", 2, 8 * KIB), leak("outs", 3, 4 * KIB)),
        sources={FILE: "loss.backward()\nhistory.append(loss)\nouts.append(out)\n"},
    )


def rows(report: Report) -> list[list[str]]:
    table = report.page.locator("#growth-table tbody tr")
    return [line.locator("th, td").all_inner_texts() for line in table.all()]


def test_holders_are_stacked_and_what_came_between_two_marks_is_told(show: Show) -> None:
    report = show(recording())
    assert report.page.locator("path.growth").count() == 2
    assert [row[:5] for row in rows(report)] == [
        ["history", "32 KiB", "64 KiB", "32 KiB", "8 KiB"],
        ["outs", "16 KiB", "32 KiB", "16 KiB", "4 KiB"],
    ]
    assert rows(report)[0][5].startswith("train.py:2")
    mark = report.page.get_by_label("Mark from")
    mark.focus()
    mark.press("ArrowRight")
    assert rows(report)[0][:4] == ["history", "48 KiB", "64 KiB", "16 KiB"]
    assert report.errors == []


def test_modules_stand_for_all_that_was_saved(show: Show) -> None:
    report = show(recording())
    report.page.locator("#growth-kind button", has_text="By module").click()
    assert [row[:3] for row in rows(report)] == [
        ["net.a", "24 KiB", "48 KiB"],
        ["(outputs)", "12 KiB", "24 KiB"],
        ["net.b", "12 KiB", "24 KiB"],
    ]


def test_a_layer_opens_its_finding(show: Show) -> None:
    report = show(recording())
    box = report.page.locator("#growth-picture svg").bounding_box()
    # What is on the right and just above the ground is the largest layer.
    report.page.mouse.click(box["x"] + box["width"] - 30, box["y"] + 150)
    report.page.wait_for_selector(".finding[open]", state="attached")
    assert "history" in report.text(".finding[open]")


def test_where_nothing_grows_nothing_of_it_is_shown(show: Show) -> None:
    canned = canned_recording()
    report = show(replace(canned, graphs={}))
    assert not report.page.locator("#growth-card").is_visible()
    assert report.errors == []

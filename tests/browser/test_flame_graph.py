"""The flame graph of the report in a real browser: widths, zoom, keys, hints, and its table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from canned import canned_recording

from gradscope.model import BackwardCall, Graph, Header, Node, Recording, SavedTensor, Site, Summary

pytestmark = [pytest.mark.browser, pytest.mark.full]

Report = Any
Show = Callable[..., Report]

KIB = 1024


def recording(alone: bool | None = False) -> Recording:
    """Two layers of a network, and an operation outside of it; one layer's input is shared."""
    line = Site("/src/train.py", 3, function="forward")

    def node(number: int, name: str, module: str | None, nbytes: int, own: bool | None) -> Node:
        saved = SavedTensor("self", (1,), "f32", "cpu", nbytes, number, alone=own)
        layer = module and "Layer"
        return Node(
            number - 1, name, sequence_nr=number, saved=(saved,), site=line,
            module=module, module_class=layer,
        )  # fmt: skip

    own = None if alone is None else True
    nodes = (
        node(1, "TanhBackward0", "net.body.0", 600 * KIB, own),
        node(2, "AddmmBackward0", "net.body.1", 300 * KIB, alone),
        node(3, "PowBackward0", None, 100 * KIB, own),
    )
    call = BackwardCall(1, "backward", line, graph=1, saved_bytes=1000 * KIB, last_number=1)
    return Recording(
        Header("1", "2", "3", "/src/train.py"),
        summary=Summary(backward_calls=1),
        calls=(call,),
        graphs={1: Graph(nodes, (), ())},
        sources={"/src/train.py": "import torch\n\n    hidden = act(x)\n"},
    )


def names(report: Report) -> list[str]:
    return [text.strip() for text in report.page.locator(".flame span").all_inner_texts()]


def widths(report: Report) -> dict[str, float]:
    """Return the share of the picture's width that each part takes."""
    whole = report.page.locator("#flames").bounding_box()["width"]
    return {
        button.get_attribute("aria-label").split(",")[0]: button.bounding_box()["width"] / whole
        for button in report.page.locator(".flame").all()
    }


def test_parts_are_as_wide_as_their_bytes(show: Show) -> None:
    report = show(recording())
    assert report.text("#flames-note") == (
        "1,000 KiB saved, backward call 1, 300 KiB of it held by something else too"
    )
    shares = widths(report)
    for name, share in {"net.body": 0.9, "net.body.0 Layer": 0.6, "(no module)": 0.1}.items():
        assert shares[name] == pytest.approx(share, abs=0.01)
    report.page.click("text=By operation")
    assert widths(report)["AddmmBackward0"] == pytest.approx(0.3, abs=0.01)
    report.page.click("text=By line")
    assert "train.py:3 forward 1,000 KiB" in names(report)
    assert report.errors == []


def test_lines_of_libraries_lie_below_the_program_s(show: Show) -> None:
    seen = recording()
    outer, inner = (Site("/lib/gpt.py", line, function="forward") for line in (80, 12))

    def within(node: Node, *lines: Site) -> Node:
        return replace(node, saved=(replace(node.saved[0], within=lines),))

    one, two, three = seen.graphs[1].nodes
    nodes = within(one, outer, inner), within(two, outer), three
    report = show(replace(seen, graphs={1: Graph(nodes, (), ())}))
    report.page.click("text=By line")
    shares = widths(report)
    assert shares["train.py:3 forward"] == pytest.approx(1, abs=0.01)
    assert shares["gpt.py:80 forward"] == pytest.approx(0.9, abs=0.01)
    assert shares["gpt.py:12 forward"] == pytest.approx(0.6, abs=0.01)
    assert shares["PowBackward0"] == pytest.approx(0.1, abs=0.01)
    report.page.click("text=Show as table")
    assert "gpt.py" not in report.page.locator("#flames-table, table").first.inner_text()
    assert report.errors == []


@pytest.mark.parametrize("kind", ["module", "line", "operation"])
def test_parts_add_up_to_what_they_are_parts_of(show: Show, kind: str) -> None:
    report = show(recording())
    report.page.click(f"text=By {kind}")
    rows: dict[float, float] = {}
    for button in report.page.locator(".flame").all():
        box = button.bounding_box()
        rows[box["y"]] = rows.get(box["y"], 0) + box["width"]
    whole, first, second = (rows[row] for row in sorted(rows)[:3])
    assert first == pytest.approx(whole, abs=5)
    assert second == pytest.approx(whole, abs=5)
    labels = [one.get_attribute("aria-label") for one in report.page.locator(".flame").all()]
    assert "1,000 KiB, 100% of the graph, 700 KiB held by the graph alone" in str(labels[0])


def test_a_click_zooms_and_the_button_zooms_out(show: Show) -> None:
    report = show(recording())
    page = report.page
    assert page.locator("#flames-out").is_disabled()
    page.locator(".flame", has_text="net.body.1").click()
    shares = widths(report)
    assert shares["net.body.1 Layer"] == pytest.approx(1, abs=0.01)
    assert "net.body.0 Layer" not in shares
    assert page.locator(".flame.above").count() == 3
    page.click("#flames-out")
    page.click("#flames-out")
    page.click("#flames-out")
    assert widths(report)["net.body.0 Layer"] == pytest.approx(0.6, abs=0.01)
    assert page.locator("#flames-out").is_disabled()


def test_keys_move_zoom_in_and_out(show: Show) -> None:
    report = show(recording())
    page = report.page

    def focused() -> str:
        return str(page.evaluate("document.activeElement.getAttribute('aria-label')"))

    page.focus("#flames .flame[tabindex='0']")
    assert focused().startswith("all that the graph saved")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    assert focused() == (
        "net.body.1 Layer, 300 KiB, 30% of the graph, "
        "0 B held by the graph alone, the rest by something else too"
    )
    assert "net.body.1 Layer" in report.text("#tip")
    page.keyboard.press("Enter")
    assert widths(report)["net.body.1 Layer"] == pytest.approx(1, abs=0.01)
    page.keyboard.press("ArrowUp")
    assert focused().startswith("net.body, ")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert focused().startswith("AddmmBackward0")
    page.keyboard.press("Escape")
    assert focused().startswith("net.body, ")
    assert page.locator(".flame[tabindex='0']").count() == 1
    assert report.errors == []


def test_what_is_searched_for_stands_out(show: Show) -> None:
    report = show(recording())
    page = report.page

    def found() -> list[str]:
        parts = page.locator(".flame:not(.faint)").all()
        return sorted({str(part.get_attribute("aria-label")).split(",")[0] for part in parts})

    page.fill("#flames-search", "layer")
    assert found() == ["net.body.0 Layer", "net.body.1 Layer"]
    assert report.text("#flames-found") == "900 KiB, 90%"
    page.fill("#flames-search", "ADDMM")
    page.click("text=By operation")
    assert found() == ["AddmmBackward0"]
    assert report.text("#flames-found") == "300 KiB, 30%"
    page.fill("#flames-search", "nothing has this")
    assert found() == []
    assert report.text("#flames-found") == "0 B, 0%"
    page.fill("#flames-search", "")
    assert page.locator(".flame.faint").count() == 0
    assert report.text("#flames-found") == ""
    assert report.errors == []


def test_a_hint_has_bytes_share_and_the_line(show: Show) -> None:
    report = show(recording())
    report.page.click("text=By line")
    report.page.locator(".flame", has_text="train.py:3").hover()
    hint = report.text("#tip")
    for part in ("hidden = act(x)", "1,000 KiB, 100% of the graph", "700 KiB held by the graph"):
        assert part in hint
    report.page.mouse.move(5, 5)
    assert not report.page.locator("#tip").is_visible()


def test_the_table_has_the_same_bytes(show: Show) -> None:
    report = show(recording())
    page = report.page
    page.click("#flames-toggle")
    rows = page.locator("#flames-table tbody tr").all_inner_texts()
    assert [row.split() for row in rows] == [
        ["net.body.0", "Layer", "600", "KiB", "60%", "600", "KiB"],
        ["net.body.1", "Layer", "300", "KiB", "30%", "0", "B"],
        ["(no", "module)", "100", "KiB", "10%", "100", "KiB"],
    ]
    page.click("text=By operation")
    assert "TanhBackward0" in report.text("#flames-table tbody")


def test_a_recording_that_does_not_say_who_else_holds_it(show: Show) -> None:
    report = show(recording(None))
    assert report.text("#flames-note") == "1,000 KiB saved, backward call 1"
    assert not report.page.locator("#flames-legend").is_visible()
    report.page.click("#flames-toggle")
    assert report.page.locator("#flames-table thead th").all_inner_texts() == [
        "Module",
        "Saved",
        "Share",
    ]
    without = show(replace(canned_recording(), graphs={}))
    assert not without.page.locator("#flames-card").is_visible()
    assert without.errors == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_fits_a_narrow_window(show: Show, dark: bool) -> None:
    report = show(recording(), width=400, dark=dark)
    assert report.page.evaluate("document.documentElement.scrollWidth") == 400
    assert {"net.body.0 Layer 600 KiB", "net.body.1"} <= set(names(report))
    assert report.errors == []

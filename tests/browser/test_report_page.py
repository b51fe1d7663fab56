"""The report in a real browser: what is there, what clicks and keys do, and that nothing leaves the file."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from canned import canned_recording, clean_recording, empty_recording, unfinished_recording
from canned.tables import with_table
from drawn import graph as graph_of
from drawn import op

from gradscope.model import (
    BackwardCall,
    Edge,
    Edit,
    Failure,
    Graph,
    Header,
    Node,
    NodeState,
    Outcome,
    Recording,
    Related,
    Root,
    Sample,
    SavedTensor,
    Severity,
    Site,
)
from gradscope.record.processes import merged
from gradscope.record.writer import RecordingWriter
from gradscope.render.html import to_html
from tests import known

pytestmark = [pytest.mark.browser, pytest.mark.full]

Report = Any
Show = Callable[..., Report]

HOSTILE = '</script><img src=x onerror="window.hurt=1"><b>\'&{{script}}\u202e\x07'


def canned() -> Recording:
    """The canned recording, the error that ended the run first."""
    recording = canned_recording()
    findings = sorted(recording.findings, key=lambda finding: finding.code != "GS101")
    # A recording has them by weight, alike ones by their calls: this order is no recording's own.
    object.__setattr__(recording, "findings", tuple(findings))
    return recording


def failed_recording() -> Recording:
    """A run that an exception ended which no finding explains."""
    notes = (Related("failing_node", Site("train.py", 11, 9), "at node `ExpBackward0`"),)
    failure = Failure(Site("train.py", 7, 5), "raised here", notes, "call it once, " * 40)
    outcome = Outcome(1, "KeyError: 'a'", finished=True, failure=failure)
    return replace(clean_recording(), outcome=outcome)


RECORDINGS = {
    "canned": canned,
    "clean": clean_recording,
    "empty": empty_recording,
    "failed": failed_recording,
    "unfinished": unfinished_recording,
}


def test_it_shows_who_trains_what(show: Show) -> None:
    report = show(with_table(), width=390)
    assert report.errors == []
    cells = [each.inner_text() for each in report.page.locator("#trains .state").all()]
    for text in ("●\ntrains, by d_optimizer", "✂\ncut at line 40, detach", "·\nno way"):
        assert text in cells
    assert report.page.locator("#trains a.state").count() == 0  # neither a finding nor a call
    report.page.locator("#trains summary").first.click()
    assert report.text("#trains li") == "generator.0.weight"
    report.page.locator("#trains-filter").click()
    assert report.page.locator("#trains tbody tr").count() == 1
    assert "probe" in report.text("#trains tbody")
    assert not show(clean_recording()).page.locator("#trains").is_visible()


def test_a_cell_leads_to_what_tells_of_it(show: Show) -> None:
    recording = with_table()
    table = known(recording.summary.training.table)
    told = canned_recording().findings[0]
    told = replace(told, code="GS503", site=Site("train.py", 9), parameters=("probe.weight",))
    calls = tuple(replace(call, site=table.losses[0].site) for call in recording.calls)
    report = show(replace(recording, findings=(*canned_recording().findings, told), calls=calls))
    page, links = report.page, report.page.locator("#trains a.state")
    assert [each.get_attribute("href") for each in links.all()][:2] == ["#graph", "#graph"]
    probe = page.locator("#trains tbody tr", has_text="probe").locator("a.state")
    assert "finding" in (probe.first.get_attribute("href") or "")
    probe.first.focus()
    page.keyboard.press("Enter")
    card = page.locator(probe.first.get_attribute("href"))
    assert card.get_attribute("open") is not None
    assert card.evaluate("card => card.contains(document.activeElement)")
    links.first.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "canvas"
    assert report.errors == []


@pytest.mark.full(but=2)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", RECORDINGS)
def test_opens_without_error_request_or_sideways_scrolling(
    show: Show, name: str, width: int, dark: bool
) -> None:
    report = show(RECORDINGS[name](), width=width, dark=dark)
    assert report.errors == []
    assert len(report.requests) == 1
    assert report.requests[0].startswith("file://")
    assert report.page.evaluate("document.documentElement.scrollWidth") == width


def test_every_finding_is_there_worst_first_with_its_lines(show: Show) -> None:
    report = show(canned())
    page = report.page
    codes = page.locator(".finding .code").all_inner_texts()
    assert sorted(codes) == sorted(finding.code for finding in canned().findings)
    assert codes[0] == "GS101"
    assert codes[-1] == "GS303"
    first = report.text(".finding")
    assert "loss_age.backward()" in first
    assert "z = net.encode(images)" in first
    for role in ("made", "freed", "stops at"):
        assert role in first
    assert "add the losses and call backward once" in first
    assert page.locator(".finding mark").first.inner_text() == "loss_age.backward()"


def test_it_leads_with_an_exception_that_no_finding_explains(show: Show) -> None:
    recording = failed_recording()
    assert recording.outcome.failure is not None
    for each in (recording, replace(canned(), outcome=recording.outcome)):
        report = show(each, width=390)
        page, first = report.page, report.page.locator(".finding").first
        assert "ended with KeyError" in report.text("#verdict h1")
        assert "Nothing to report" not in report.text("#findings")
        for said in ("raised", "KeyError: 'a'", "train.py:7:5", "ExpBackward0", "train.py:11:9"):
            assert said in first.inner_text()
        assert first.locator(".fix p").inner_text() == recording.outcome.failure.help.strip()
        assert first.locator(".fix p").evaluate("p => p.scrollHeight <= p.clientHeight")
        assert page.locator(".finding[open]").count() == 1


def test_opening_a_finding_selects_its_call_and_marks_its_nodes(show: Show) -> None:
    report = show(canned())
    assert "Call 2,007" in report.text("#call")
    report.open_finding("GS201")
    assert "Call 2,005" in report.text("#call")
    report.page.locator("#details", has_text="GS201").wait_for()  # its graph is unpacked first
    assert report.page.locator("#details .marked li").all_text_contents() == [
        "AddmmBackward0 ≠stale"
    ]


def test_a_finding_without_nodes_leads_to_no_graph_and_shows_an_excerpt_once(show: Show) -> None:
    first, *others = (f for f in canned().findings if f.code in ("GS302", "GS101"))
    assert first.site is not None
    twice = replace(first.related[0], site=first.site)
    finding = replace(first, graph_nodes=(), related=(twice,))
    page = show(replace(canned(), findings=(finding, *others))).page
    card = page.locator(".finding").first
    assert card.locator("button", has_text="Show in the graph").count() == 0
    assert (card.locator(".step").count(), card.locator("figure.snippet").count()) == (2, 1)


def test_an_edit_keeps_its_indentation(show: Show, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("if True:\n    for x in xs:\n        pass\n", encoding="utf-8")
    first, *others = canned().findings
    assert first.fix is not None
    new = "    for x in xs:\n        y = 2 * x"
    fix = replace(first.fix, edits=(Edit(str(file), 2, new),))
    report = show(replace(canned(), findings=(replace(first, fix=fix), *others)))
    report.open_finding(first.code)
    shown = report.page.locator(".finding .plus").all_text_contents()
    assert shown == ["+ for x in xs:", "+     y = 2 * x"]


@pytest.mark.parametrize("width", [1280, 390])
def test_all_of_an_edit_is_in_sight(show: Show, tmp_path: Path, width: int) -> None:
    file = tmp_path / "train.py"
    line = "            real_score, fake_score = net_of_the_judge(real), net_of_the_judge(fake)"
    file.write_text("x\n" + line, encoding="utf-8")
    first, *others = canned().findings
    assert first.fix is not None
    fix = replace(first.fix, edits=(Edit(str(file), 2, line[:-1] + ".detach())"),))
    recording = replace(canned(), findings=(replace(first, fix=fix), *others))
    report = show(recording, width=width)
    report.open_finding(first.code)
    edit = report.page.locator(".finding .fix pre").first
    assert edit.evaluate("each => each.scrollWidth <= each.clientWidth")
    assert edit.locator(".plus").inner_text().endswith("net_of_the_judge(fake.detach())")


@pytest.mark.parametrize("predicted", [0, 3])
@pytest.mark.parametrize("width", [1280, 800, 500, 360])
def test_tiles_fill_their_rows(show: Show, width: int, predicted: int) -> None:
    summary = replace(canned().summary, predicted=predicted)
    page = show(replace(canned(), summary=summary), width=width).page
    edges = page.evaluate(
        "[...document.querySelectorAll('.tile')].map(t => t.getBoundingClientRect())"
        ".map(r => [Math.round(r.top), Math.round(r.right), Math.round(r.width)])"
    )
    rows: dict[int, list[list[int]]] = {}
    for top, *rest in edges:
        rows.setdefault(top, []).append(rest)
    assert len({len(row) for row in rows.values()}) == 1
    assert len({row[-1][0] for row in rows.values()}) == 1
    assert max(width for *_, width in edges) - min(width for *_, width in edges) <= 2


def test_verdicts_without_findings(show: Show) -> None:
    assert report_headline(show(clean_recording())) == "No problem found"
    nothing = show(empty_recording())
    assert report_headline(nothing) == "No backward call was seen"
    assert not nothing.page.locator("#timeline").is_visible()
    assert "stopped before" in show(unfinished_recording()).text("#verdict")


def report_headline(report: Report) -> str:
    return str(report.text("h1"))


def test_each_process_has_its_timeline(show: Show) -> None:
    one = canned_recording()
    header = replace(one.header, run="7-a", ranks=2)
    others = tuple(f for f in one.findings if f.severity is not Severity.ERROR)
    late = tuple(replace(sample, live_bytes=2 * sample.live_bytes) for sample in one.timeline)
    first = replace(one, header=replace(header, rank=0, pid=100), findings=others)
    summary = replace(one.summary, backward_calls=2001, peak_saved_bytes=10**6)
    second = replace(one, summary=summary, calls=one.calls[:4], timeline=late)
    ranks = [first, replace(second, header=replace(header, rank=1, pid=101))]
    report = show(merged(ranks))
    page = report.page
    picker = page.locator("#track")
    # The worst finding is open; only rank 1 has met it.
    assert picker.locator("option:checked").inner_text() == "rank 1"
    assert "2,001 backward calls" in report.text("#timeline-note")
    curve = page.locator(".area.live").first.get_attribute("d")
    picker.select_option("0")
    assert "2,007 backward calls" in report.text("#timeline-note")
    assert page.locator(".area.live").first.get_attribute("d") != curve
    assert report.text("#call h3").startswith("Call 2,00")
    page.click("#calls-toggle")
    assert page.locator("#calls-table tbody tr").count() == len(one.calls)
    picker.select_option("1")
    assert page.locator("#calls-table tbody tr").count() == 4
    report.open_finding("GS302")
    assert picker.locator("option:checked").inner_text() == "rank 0"
    assert report.errors == []
    assert not show(canned()).page.locator("#track").is_visible()
    narrow = show(merged(ranks), width=390)
    assert narrow.page.evaluate("document.documentElement.scrollWidth") == 390
    assert "rank 1" in narrow.text("#processes")


def test_timeline_keys_click_brush_and_table(show: Show) -> None:
    report = show(canned())
    page = report.page
    page.focus("#timeline-svg")
    page.keyboard.press("Home")
    assert "Calls 1\u20131,999" in report.text("#call h3")
    page.keyboard.press("ArrowRight")
    assert "Calls 2\u20132,000" in report.text("#call h3")
    page.keyboard.press("End")
    assert "Call 2,007" in report.text("#call h3")

    page.click("#calls-toggle")
    rows = page.locator("#calls-table tbody tr")
    assert rows.count() == len(canned().calls)
    page.locator("#calls-table button", has_text="2,003").click()
    assert "autograd.grad" in report.text("#call")

    page.evaluate("document.getElementById('timeline').scrollIntoView()")
    box = page.locator("#timeline-svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.72, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 14, box["y"] + 60, steps=5)
    page.mouse.up()
    assert "calls selected" in report.text("#brush-note")
    assert 1 < rows.count() < len(canned().calls)
    page.click("#brush-note button")
    assert rows.count() == len(canned().calls)

    before = page.locator(".bar.run").first.get_attribute("d")
    page.locator("#axis button", has_text="By time").click()
    assert page.locator(".bar.run").first.get_attribute("d") != before
    assert report.errors == []


def test_graph_click_search_keys_and_details(show: Show) -> None:
    report = show(canned())
    page = report.page
    page.keyboard.press("/")
    page.keyboard.type("tanh")
    assert "1 of 1" in report.text("#search-note")
    details = report.text("#details")
    assert "TanhBackward0" in details
    assert "result f32[32, 256]" in details
    assert "backward call 2,006" in details
    assert "torch.tanh" in details

    page.keyboard.press("Escape")
    page.focus("#canvas")
    page.keyboard.press("ArrowDown")
    start = report.text("#details h3")
    page.keyboard.press("ArrowDown")
    assert report.text("#details h3") != start

    page.locator("#details button.link", has_text="AddmmBackward0").first.click()
    assert report.text("#details h3") == "AddmmBackward0"
    page.focus("#canvas")
    page.keyboard.press("Escape")
    assert report.text("#details h3") == "This graph"

    page.click("#nodes-toggle")
    assert page.locator("#nodes-table tbody tr").count() == 16
    page.locator("#nodes-table button", has_text="MseLossBackward0").click()
    assert report.text("#details h3") == "MseLossBackward0"
    assert report.errors == []


def test_the_table_of_nodes_comes_back_with_the_graph(show: Show) -> None:
    one = canned()
    report = show(replace(one, calls=(*one.calls[:-1], replace(one.calls[-1], graph=None))))
    page, table = report.page, report.page.locator("#nodes-table")
    page.focus("#timeline-svg")
    page.keyboard.press("Home")
    page.click("#nodes-toggle")
    assert table.is_visible()
    page.focus("#timeline-svg")
    page.keyboard.press("End")
    assert page.locator("#graph-empty").is_visible()
    assert not table.is_visible()
    page.keyboard.press("Home")
    assert table.is_visible()
    assert report.text("#nodes-toggle") == "Hide table"
    assert report.errors == []


def test_canvas_zooms_pans_and_answers_to_clicks(show: Show) -> None:
    report = show(clean_recording())
    page = report.page
    page.evaluate("document.getElementById('graph').scrollIntoView()")
    seen = [report.pixels()]
    box = page.locator("#canvas").bounding_box()
    middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.move(*middle)
    page.mouse.move(middle[0] + 3, middle[1] + 3)
    page.mouse.wheel(0, -300)
    seen.append(report.pixels())
    page.mouse.down()
    page.mouse.move(middle[0] + 120, middle[1] + 40, steps=4)
    page.mouse.up()
    seen.append(report.pixels())
    page.click("#zoom-out")
    seen.append(report.pixels())
    assert len(set(seen)) == len(seen)
    page.click("#fit")
    page.focus("#canvas")
    page.keyboard.press("ArrowDown")
    assert report.text("#details h3") == "MeanBackward0"
    assert report.errors == []


def test_groups_close_and_open_by_click_and_key(show: Show) -> None:
    report = show(clean_recording())
    page = report.page
    opened = report.pixels()
    page.click("#close-all")
    assert report.pixels() != opened
    page.focus("#canvas")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert report.text("#details h3") == "critic"
    closed = report.pixels()
    page.keyboard.press("Enter")
    assert report.pixels() != closed
    assert "Close the group" in report.text("#details")
    page.locator("#details button", has_text="Close the group").click()
    assert "Open the group" in report.text("#details")


def test_shared_part_is_marked(show: Show) -> None:
    report = show(canned())
    page = report.page
    page.click("#shared")
    assert page.get_attribute("#shared", "aria-pressed") == "true"
    marked = page.locator("#details .marked li").all_inner_texts()
    assert len(marked) == 5
    assert any("TanhBackward0" in text for text in marked)
    page.click("#shared")
    assert page.get_attribute("#shared", "aria-pressed") == "false"


def test_help_and_theme(show: Show) -> None:
    report = show(canned())
    page = report.page
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#help").is_visible()
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("t")
    assert page.get_attribute("html", "data-theme") == "dark"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light


def test_memory_tables_lead_to_finding_and_node(show: Show) -> None:
    report = show(canned())
    page = report.page
    assert "history[0] to history[19] hold them" in report.text("#memory")
    page.locator("#memory button", has_text="GS302").click()
    assert page.locator("details.finding[open]", has_text="GS302").count() == 1
    page.locator("#memory-tables button", has_text="AddmmBackward0").first.click()
    page.locator("#details h3", has_text="AddmmBackward0").wait_for()  # its graph is unpacked first


def test_prints_on_white_without_the_controls(show: Show) -> None:
    report = show(canned(), dark=True)
    report.page.emulate_media(media="print")
    assert (
        report.page.evaluate("getComputedStyle(document.body).backgroundColor")
        == "rgb(255, 255, 255)"
    )
    assert not report.page.locator("#graph-toolbar").is_visible()
    assert report.page.locator(".finding").first.is_visible()


def test_strings_of_the_program_stay_text(show: Show) -> None:
    report = show(hostile_recording())
    page = report.page
    assert page.evaluate("window.hurt") is None
    page.click("#nodes-toggle")
    page.click("#calls-toggle")
    page.locator("#nodes-table button").first.click()
    page.locator("#search").fill("img")
    assert page.locator("main img, main b b, #details img").count() == 0
    assert page.evaluate("window.hurt") is None
    for selector in ("#findings", "#call", "#details", "#nodes-table", "#verdict"):
        assert "<img src=x onerror=" in report.text(selector)
    assert report.errors == []
    assert len(report.requests) == 1


def hostile_recording() -> Recording:
    """The canned run, every string of the program replaced by one that wants to be markup."""
    whole = canned()
    site = Site(HOSTILE, 1, 1, 1, 20, HOSTILE)
    saved = SavedTensor(HOSTILE, (2,), HOSTILE, HOSTILE, 8, source=HOSTILE, site=site)
    node = Node(0, HOSTILE, NodeState.LIVE, 1, (saved,), site, HOSTILE, HOSTILE)
    leaf = Node(1, "AccumulateGrad", NodeState.BUFFERLESS, variable=HOSTILE, variable_label=HOSTILE)
    graph = Graph((node, leaf), (Edge(0, 1),), (Root(0, HOSTILE, HOSTILE),))
    texts: dict[str, Any] = dict.fromkeys(("exception", "thread", "kind"), HOSTILE)
    call = replace(whole.calls[-1], site=site, roots=graph.roots, graph=1, **texts)
    finding = replace(
        whole.findings[-1], name=HOSTILE, message=HOSTILE, label=HOSTILE, site=site, nodes=(HOSTILE,), saved=(HOSTILE,),
        related=tuple(replace(related, site=site, message=HOSTILE) for related in whole.findings[-1].related),
        graph=1, graph_nodes=(0,),
    )  # fmt: skip
    return replace(
        whole,
        header=replace(whole.header, script=HOSTILE, argv=(HOSTILE,), torch=HOSTILE),
        outcome=replace(whole.outcome, exception=HOSTILE),
        summary=replace(whole.summary, notes=(HOSTILE,)),
        calls=(call,), findings=(finding,), graphs={1: graph}, sources={HOSTILE: HOSTILE},
    )  # fmt: skip


def test_a_graph_of_many_nodes_opens_folded_and_can_be_searched(show: Show) -> None:
    size = 3_000
    nodes = [
        op(i, "Addmm", size - i, site=Site("model.py", i % 40 + 1), module=f"h.{i // 30}.mlp")
        for i in range(size)
    ]
    graph = graph_of(nodes, [(i, i + 1) for i in range(size - 1)], loss=0)
    whole = clean_recording()
    report = show(replace(whole, graphs={1: graph}))
    page = report.page
    page.locator("#search").fill("h.7.mlp")
    assert "1 of 30" in report.text("#search-note")
    page.keyboard.press("Enter")
    assert "2 of 30" in report.text("#search-note")
    assert "h.7.mlp" in report.text("#details")
    page.click("#open-all")
    page.click("#fit")
    page.click("#close-all")
    assert report.errors == []


def test_the_curve_goes_on_from_like_calls_and_says_so(show: Show) -> None:
    whole = clean_recording()
    half = len(whole.timeline) // 2
    known = tuple(replace(sample, alike=at >= half) for at, sample in enumerate(whole.timeline))
    report = show(replace(whole, timeline=known))
    boxes = [
        report.page.locator(f"#timeline-svg .area.live{kind}").bounding_box()
        for kind in (":not(.alike)", ".alike")
    ]
    measured, alike = boxes
    assert measured["x"] < alike["x"]
    assert alike["x"] == pytest.approx(measured["x"] + measured["width"], abs=10)
    assert "known from like calls" in report.text("#timeline-legend")
    assert show(whole).page.locator(".area.alike").count() == 0


def test_a_run_of_100_000_calls_makes_a_page_that_is_painted_at_once(show: Show) -> None:
    """The page's size does not grow with the run; it is painted after 0.1 s where 2 s would be too long."""
    rng = random.Random(0)
    writer = RecordingWriter(None, Header("1", "2", "3", "/src/train.py"))
    for number in range(1, 100_001):
        site = Site("/src/train.py", rng.randrange(1, 60), function="step")
        size, start = rng.randrange(1 << 20), number / 100
        call = BackwardCall(
            *(number, "backward", site),
            saved_bytes=size,
            retained_bytes=rng.choice([0, size]),
            nodes=rng.randrange(10, 10_000),
            started=start,
            ended=start + 0.005,
            last_number=number,
        )
        writer.call(call)
        writer.sample(Sample(start, rng.randrange(1 << 30), 0, number))
    recording = writer.read()
    writer.close()
    assert len(to_html(recording)) < 500_000
    report = show(recording)
    assert "100,000 backward calls" in report.page.inner_text("body")
    paints = report.page.evaluate("performance.getEntriesByType('paint').map(paint => paint.name)")
    assert "first-contentful-paint" in paints
    assert report.errors == []

"""The report for everyone: by keyboard alone, by ear, in calm, without colours, and in both themes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from canned import canned_recording, clean_recording, empty_recording, unfinished_recording
from canned.tables import with_table
from drawn import graph as graph_of
from drawn import op

from gradscope.model import NodeState, Recording
from gradscope.record.processes import merged
from gradscope.render.theme import NODE_STATES
from tests.browser.test_memory_that_grows import recording as growing_recording
from tests.browser.test_report_page import failed_recording

pytestmark = [pytest.mark.browser, pytest.mark.full]

Report = Any
Show = Callable[..., Report]


def ranked_recording() -> Recording:
    """The canned run, on two ranks."""
    header = replace(canned_recording().header, run="7-a", ranks=2)
    headers = (replace(header, rank=rank, pid=100 + rank) for rank in (0, 1))
    return merged([replace(canned_recording(), header=header) for header in headers])


RECORDINGS = {
    "canned": canned_recording,
    "clean": clean_recording,
    "empty": empty_recording,
    "failed": failed_recording,
    "growing": growing_recording,
    "ranks": ranked_recording,
    "table": with_table,
    "unfinished": unfinished_recording,
}


def open_all(page: Any) -> None:
    """Open whatever opens; a finding is filled when it is, in a task of its own."""
    closed = page.locator("details:not([open])")
    while closed.count():
        closed.evaluate_all("all => all.forEach((one) => { one.open = true; })")
        page.wait_for_timeout(60)
    toggles = page.locator("button[aria-expanded=false]:visible")
    while toggles.count():
        toggles.first.evaluate("one => one.click()")  # which leaves the focus where it is


def point_at_the_timeline(page: Any) -> None:
    page.locator("#timeline-svg").scroll_into_view_if_needed()
    page.wait_for_timeout(80)  # scrolling hides a hint
    page.hover("#timeline-svg", position={"x": 200, "y": 100})


def use_all(page: Any) -> None:
    """Select, search, zoom, brush, and let what only shows then show."""
    for selector in ("#axis button:last-child", "#growth-kind button:last-child", "#trains-filter"):
        if page.locator(selector).is_visible():
            page.locator(selector).click()
    if page.locator("#timeline-svg").is_visible():
        page.focus("#timeline-svg")
        page.keyboard.press("Home")
        page.keyboard.press("Shift+ArrowRight")
        point_at_the_timeline(page)
    if page.locator("#graph-card").is_visible():
        page.fill("#search", "backward")
    if page.locator("#flames-card").is_visible():
        page.locator(".flame").last.focus()
        page.keyboard.press("Enter")
        page.fill("#flames-search", "tanh")


@pytest.mark.full(but=1)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("recording", RECORDINGS.values(), ids=RECORDINGS)
def test_axe_finds_nothing(show: Show, recording: Callable[[], Recording], dark: bool) -> None:
    """Contrast, names, roles and landmarks: with all that opens opened, in use, and in the help."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    report = show(recording(), dark=dark)
    page = report.page
    assert page.get_attribute("html", "data-theme") == ("dark" if dark else "light")
    for change in (open_all, use_all, lambda page: page.click("#help-open")):
        change(page)
        assert [each["id"] for each in axe.run(page).response["violations"]] == []
    assert report.errors == []


WANTED = """() => {
  const all = "a[href], button, input, select, summary, [tabindex]";
  const wanted = [...document.querySelectorAll(all)].filter(
    (one) => one.tabIndex >= 0 && !one.disabled && one.checkVisibility({visibilityProperty: true}));
  wanted.forEach((one, number) => { one.dataset.wanted = number; });
  return wanted.map((one) => one.outerHTML.slice(0, 90));
}"""
"""Numbers all that the Tab key should come to."""

FOCUSED = """() => {
  const one = document.activeElement;
  if (one === document.body) return null;
  const style = getComputedStyle(one), box = one.getBoundingClientRect();
  const width = parseFloat(style.outlineWidth), away = parseFloat(style.outlineOffset) + width;
  const cut = [];
  for (let above = one.parentElement; above; above = above.parentElement) {
    const edge = above.getBoundingClientRect();
    // What scrolls may show a part of it, but never neither of two sides.
    if (getComputedStyle(above).overflowX === "visible") continue;
    if (box.left - away < edge.left - 1 && box.right + away > edge.right + 1) cut.push(above.className);
  }
  const x = (Math.max(box.left, 0) + Math.min(box.right, innerWidth)) / 2;
  const y = (Math.max(box.top, 0) + Math.min(box.bottom, innerHeight)) / 2;
  return {
    number: one.dataset.wanted ?? null,
    html: one.outerHTML.slice(0, 90),
    visible: one.matches(":focus-visible") && style.outlineStyle !== "none" && width >= 2 && !cut.length,
    uncovered: one.contains(document.elementFromPoint(x, y)),
  };
}"""


@pytest.mark.parametrize("recording", [ranked_recording, growing_recording, with_table])
def test_the_tab_key_comes_to_everything_and_shows_where_it_is(
    show: Show, recording: Callable[[], Recording]
) -> None:
    page = show(recording()).page
    open_all(page)
    wanted = dict(enumerate(page.evaluate(WANTED)))
    page.keyboard.press("Tab")
    while (focused := page.evaluate(FOCUSED)) is not None:
        assert focused["visible"], focused
        assert focused["uncovered"], focused
        wanted.pop(int(focused["number"] or -1), None)
        page.keyboard.press("Tab")
    assert list(wanted.values()) == []


def focused(page: Any) -> str:
    return str(
        page.evaluate(
            "document.activeElement.id || document.activeElement.ariaLabel || document.activeElement.textContent"
        )
    )


def test_keys_press_what_the_pointer_presses(show: Show) -> None:
    report = show(canned_recording())
    page, press = report.page, report.page.keyboard.press
    page.focus("#theme")
    press("Space")
    assert page.get_attribute("html", "data-theme") == "dark"
    page.focus("#help-open")
    press("Enter")
    assert page.locator("#help").is_visible()
    press("Escape")
    assert not page.locator("#help").is_visible()
    assert focused(page) == "help-open"
    page.locator("summary", has_text="GS302").focus()
    press("Space")
    assert page.locator(".finding[open]", has_text="GS302").count() == 1
    for toggle in ("calls-toggle", "nodes-toggle", "flames-toggle"):
        page.focus(f"#{toggle}")
        for shown, key in (("true", "Enter"), ("false", "Space"), ("true", "Enter")):
            press(key)
            assert page.get_attribute(f"#{toggle}", "aria-expanded") == shown
    page.locator("#axis button").last.focus()
    press("Space")
    assert page.locator("#axis button").last.get_attribute("aria-pressed") == "true"
    page.locator("#nodes-table button").first.focus()
    press("Enter")
    assert report.text("#details h3") == report.text("#nodes-table button")
    assert report.errors == []


def test_the_focus_stays_where_what_it_was_on_is_drawn_again(show: Show) -> None:
    report = show(canned_recording())
    page, press = report.page, report.page.keyboard.press
    page.focus("#timeline-svg")
    press("Home")
    press("Tab")
    press("Tab")  # the previous call is none
    while focused(page) != "Next call":
        press("Tab")
    press("Enter")
    press("Enter")
    assert (focused(page), report.text("#call h3")) == ("Next call", "Call 2,001")
    for _ in range(7):
        press("Enter")
    assert focused(page) == "call"  # the last: its button cannot be pressed any more
    page.click("#calls-toggle")
    page.locator("#calls-table button", has_text="2,003").focus()
    press("Enter")
    assert (focused(page), report.text("#call h3")) == ("2,003", "Call 2,003")
    page.focus("#canvas")
    press("ArrowDown")
    page.locator("#details button.link").first.focus()
    press("Enter")
    assert focused(page) == "details"
    page.locator(".finding[open] button", has_text="Show in the graph").focus()
    press("Enter")
    assert focused(page) == "canvas"
    assert report.errors == []


def test_shift_and_arrows_select_calls_and_escape_lets_them_go(show: Show) -> None:
    report = show(canned_recording())
    page, press = report.page, report.page.keyboard.press
    page.click("#calls-toggle")
    rows = page.locator("#calls-table tbody tr")
    page.focus("#timeline-svg")
    press("End")
    for _ in range(3):
        press("Shift+ArrowLeft")
    press("Shift+ArrowRight")
    assert report.text("#brush-note").startswith("3 calls selected")
    assert (rows.count(), report.text("#call h3")) == (3, "Call 2,005")
    press("Escape")
    assert rows.count() == len(canned_recording().calls)
    press("Shift+Home")
    assert rows.count() == len(canned_recording().calls) - 2
    page.locator("#brush-note button").focus()
    press("Enter")
    assert (page.locator("#brush-note").is_visible(), focused(page)) == (False, "timeline-svg")
    assert report.errors == []


def test_backspace_goes_to_the_group_around_and_enter_closes_it(show: Show) -> None:
    report = show(clean_recording())
    page, press = report.page, report.page.keyboard.press
    page.focus("#canvas")
    for key in ("ArrowDown", "ArrowDown", "Backspace"):
        press(key)
    assert report.text("#details h3") == "critic"
    opened = report.pixels()
    press("Enter")
    assert report.pixels() != opened
    assert "Open the group" in report.text("#details")
    assert report.errors == []


def test_escape_hides_a_hint(show: Show) -> None:
    report = show(canned_recording())
    point_at_the_timeline(report.page)
    assert report.page.locator("#tip").is_visible()
    report.page.keyboard.press("Escape")
    assert not report.page.locator("#tip").is_visible()


MOVING = """[...document.querySelectorAll("*")].map((one) => getComputedStyle(one)).filter((style) =>
  style.transitionDuration.split(", ").some((time) => parseFloat(time)) ||
  style.animationName !== "none" || style.scrollBehavior === "smooth").length"""


def test_nothing_moves_for_those_who_ask_for_that(show: Show) -> None:
    page = show(canned_recording()).page
    page.evaluate(
        "void (Element.prototype.scrollIntoView = (how) => (window.went ??= []).push(how.behavior))"
    )
    for motion, behavior in (("reduce", "auto"), ("no-preference", "smooth")):
        page.emulate_media(reduced_motion=motion)
        assert bool(page.evaluate(MOVING)) == (motion == "no-preference")
        page.locator(".finding[open] button", has_text="Show in the graph").click()
        page.locator(".finding[open] button", has_text="Show call").first.click()
        page.locator("#memory button", has_text="GS302").click()
        assert page.evaluate("window.went.splice(0)") == [behavior] * 3


def heard(page: Any) -> list[tuple[str, str]]:
    """Role and name of each element that a screen reader meets."""
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    met = [node for node in nodes if not node["ignored"] and "name" in node]
    return [(node["role"]["value"], node["name"]["value"]) for node in met]


def test_a_selected_node_has_a_name_and_so_has_a_group(show: Show) -> None:
    page = show(clean_recording()).page
    page.focus("#canvas")
    for keys, said in (
        (["ArrowDown"], "MeanBackward0, "),
        (["ArrowDown", "Backspace"], "group critic, 4 nodes, "),
        (["Enter"], "group critic, 4 nodes, "),
    ):
        for key in keys:
            page.keyboard.press(key)
        number = page.get_attribute("#canvas", "aria-activedescendant")
        name = page.locator(f"#canvas #{number}").get_attribute("aria-label")
        assert name.startswith(said)
        assert ("image", name) in heard(page)
    assert name.endswith("Enter opens it")
    page.keyboard.press("Escape")
    assert page.get_attribute("#canvas", "aria-activedescendant") is None
    page.fill("#search", "mean")
    assert page.locator("#announce").inner_text().startswith("MeanBackward0, ")


@pytest.mark.parametrize("width", [1280, 390])
def test_every_row_of_a_table_has_a_name(show: Show, width: int) -> None:
    page = show(canned_recording(), width=width).page
    open_all(page)
    rows = page.locator("main tbody tr").count()
    names = [name for role, name in heard(page) if role == "row" and name]
    assert len(names) == rows > 10
    assert any(name.startswith("AddmmBackward0") for name in names)


def test_states_differ_in_shape_however_far_away(show: Show) -> None:
    """As the symbol between the sizes that show words, and those that show a spot: without colours."""
    states = list(NodeState)
    nodes = [op(n, "Addmm", 90 - n, states[n % len(states)]) for n in range(90)]
    graph = graph_of(nodes, [(n, n + 1) for n in range(89)], loss=0)
    page = show(replace(clean_recording(), graphs={1: graph})).page
    shapes = page.locator("#graph-legend path").evaluate_all(
        "all => all.map((one) => one.getAttribute('d'))"
    )
    assert len(set(shapes)) == len(states)
    page.evaluate(
        """() => {
          const draws = CanvasRenderingContext2D.prototype, {fillText, fill} = draws;
          window.texts = new Set();
          window.spots = 0;
          draws.fillText = function (text, ...more) { texts.add(text); fillText.call(this, text, ...more); };
          draws.fill = function (rule) { spots += rule === "evenodd"; fill.call(this, rule); };
        }"""
    )
    page.click("#open-all")
    page.click("#fit")
    page.wait_for_timeout(80)
    assert page.evaluate("spots") >= len(states)
    page.evaluate("texts.clear()")
    while page.evaluate("texts.size") < len(states):
        page.click("#zoom-in")
        page.wait_for_timeout(80)
    assert page.evaluate("[...texts].sort()") == sorted(
        NODE_STATES[state].symbol for state in states
    )


def test_the_words_of_what_is_faded_are_as_clear_as_others(show: Show) -> None:
    page = show(canned_recording()).page  # the first finding's nodes are marked, all else fades
    page.evaluate(
        """() => {
          const draws = CanvasRenderingContext2D.prototype, {fillText} = draws;
          window.words = {};
          draws.fillText = function (text, ...more) {
            words[text] = this.globalAlpha;
            fillText.call(this, text, ...more);
          };
        }"""
    )
    page.click("#zoom-in")
    page.wait_for_timeout(80)
    words = page.evaluate("words")
    assert "TanhBackward0" in words
    assert set(words.values()) == {1}


def test_what_is_drawn_over_time_differs_in_more_than_colour(show: Show) -> None:
    """Each kind of mark in the legend looks another way in shades of grey."""
    page = show(canned_recording()).page
    marks = page.locator("#timeline-legend svg")
    grey = marks.evaluate_all(
        """all => all.map((one) => [...one.children].map((each) => {
          const {fill, stroke, strokeWidth, strokeDasharray} = getComputedStyle(each);
          const pattern = fill.startsWith("url") && fill;
          const size = each.getAttribute("height"), line = stroke !== "none" && strokeWidth;
          return [each.tagName, size, pattern, line, strokeDasharray].join();
        }).join())"""
    )
    areas, bars = grey[:2], grey[2:]
    assert (len(set(areas)), len(set(bars))) == (2, 6)
    assert (
        sum("#kept" in bar for bar in bars) == 1
    )  # what is retained differs in pattern, as what is freed in shape


def test_what_grows_has_its_name_in_the_picture(show: Show) -> None:
    page = show(growing_recording()).page
    assert page.locator("#growth-picture .growth-name").all_text_contents() == ["history", "outs"]

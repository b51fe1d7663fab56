from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from itertools import combinations
from typing import Any

import pytest
from rich.cells import cell_len
from rich.style import Style as RichStyle

from gradscope.fixing.gradient_paths import LineState
from gradscope.formatting import visible
from gradscope.model import NodeState, SavedState, Severity
from gradscope.render.theme import (
    DARK,
    LIGHT,
    NODE_STATES,
    SAVED_STATES,
    SEVERITIES,
    WAY_STATES,
    Page,
    Style,
)

TABLES: list[tuple[type[StrEnum], Mapping[Any, Style]]] = [
    (NodeState, NODE_STATES),
    (SavedState, SAVED_STATES),
    (Severity, SEVERITIES),
    (LineState, WAY_STATES),
]
LOOKS = [look for _, table in TABLES for look in table.values()]


def channels(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return red, green, blue


def linear(colour: str) -> list[float]:
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels(colour)]


def luminance(colour: str) -> float:
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def as_seen(colour: str, deficiency: list[list[float]]) -> list[float]:
    seen = [sum(m * c for m, c in zip(row, linear(colour), strict=True)) for row in deficiency]
    return [min(max(c, 0.0), 1.0) ** (1 / 2.2) for c in seen]


# Machado, Oliveira and Fernandes 2009, full severity, on linear RGB.
PROTANOPIA = [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]
DEUTERANOPIA = [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]


@pytest.mark.parametrize(("states", "table"), TABLES)
def test_every_state_has_a_look_and_is_told_by_word_and_symbol(
    states: type[StrEnum], table: Mapping[StrEnum, Style]
) -> None:
    assert list(table) == list(states)
    for state, look in table.items():
        assert look.word == str(state)
        assert look.meaning
    assert len({visible(look.symbol, "ascii") for look in table.values()}) == len(table)
    for trait in ("word", "symbol"):
        assert len({getattr(look, trait) for look in table.values()}) == len(table)


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.word)
def test_symbols_take_one_cell_and_have_an_ascii_stand_in(look: Style) -> None:
    assert cell_len(look.symbol) == 1
    assert len(visible(look.symbol, "ascii")) == 1
    RichStyle.parse(look.terminal)


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.word)
@pytest.mark.parametrize(("page", "tone"), [(LIGHT, "light"), (DARK, "dark")])
def test_ink_and_text_are_readable(look: Style, page: Page, tone: str) -> None:
    colours = getattr(look, tone)
    assert contrast(colours.ink, page.background) >= 4.5
    assert contrast(colours.ink, colours.fill) >= 4.5
    assert contrast(page.text, colours.fill) >= 7


@pytest.mark.parametrize("page", [LIGHT, DARK])
def test_the_page_is_readable(page: Page) -> None:
    assert contrast(page.text, page.background) >= 7
    assert contrast(page.muted, page.background) >= 4.5
    assert contrast(page.accent, page.background) >= 4.5
    assert contrast(page.rule, page.background) >= 3


@pytest.mark.parametrize(
    "deficiency", [PROTANOPIA, DEUTERANOPIA], ids=["protanopia", "deuteranopia"]
)
@pytest.mark.parametrize("tone", ["light", "dark"])
def test_the_states_of_what_is_saved_differ_without_red_and_green(
    deficiency: list[list[float]], tone: str
) -> None:
    told_by_colour = [
        NODE_STATES[s]
        for s in (NodeState.LIVE, NodeState.RETAINED, NodeState.FREED, NodeState.STALE)
    ]
    for one, other in combinations(told_by_colour, 2):
        seen = [as_seen(getattr(look, tone).ink, deficiency) for look in (one, other)]
        distance = sum((a - b) ** 2 for a, b in zip(*seen, strict=True)) ** 0.5
        assert distance > 0.1, (one.word, other.word)


def test_states_that_differ_in_kind_have_lines_of_their_own() -> None:
    lines = {
        NODE_STATES[s].line
        for s in (NodeState.LIVE, NodeState.RETAINED, NodeState.FREED, NodeState.STALE)
    }
    assert len(lines) == 4
    assert len({look.line for look in WAY_STATES.values()}) == 4

"""The one table of colours, symbols and words for states and severities, shared by all renderers.

Colour alone never marks a state: each has a word, a symbol and a line style. The hues
are those of Okabe and Ito, which people with any of the common colour vision deficiencies can tell
apart, darkened for a light page and lightened for a dark one until they read well as text.
"""

from __future__ import annotations

from typing import NamedTuple

from gradscope.model import CellState, NodeState, SavedState, Severity


class Tone(NamedTuple):
    """The colours on one page: ``ink`` for text and borders, ``fill`` behind ``Page.text``."""

    ink: str
    fill: str


class Style(NamedTuple):
    """How one state or severity looks everywhere.

    ``symbol`` is one cell wide; ``terminal`` is a rich style; ``line`` is a line style of graphviz,
    ``dash`` the same for a canvas (lengths on and off; none is solid).
    """

    word: str
    symbol: str
    terminal: str
    light: Tone
    dark: Tone
    meaning: str
    line: str = "solid"
    dash: tuple[int, ...] = ()


class Page(NamedTuple):
    """Colours of the page itself: background, text, muted text, and rules or edges."""

    background: str
    text: str
    muted: str
    rule: str
    accent: str


LIGHT = Page("#ffffff", text="#1a1a1a", muted="#595959", rule="#8c8c8c", accent="#005a8f")
DARK = Page("#16181d", text="#e8e8e8", muted="#a6a6a6", rule="#6e6e6e", accent="#7cc4f0")


_GREEN = (Tone("#00654a", "#d5efe6"), Tone("#3fc79e", "#0f3d30"))
_BLUE = (Tone("#005a8f", "#d9ebf7"), Tone("#7cc4f0", "#12364d"))
_VERMILION = (Tone("#a84700", "#fbe3d3"), Tone("#ff9a57", "#4d2408"))
_PURPLE = (Tone("#a03c74", "#f6e1ee"), Tone("#e5a3c9", "#452237"))
_AMBER = (Tone("#7a5200", "#fcecc9"), Tone("#f0b93a", "#453205"))
_GREY = (Tone("#595959", "#f0f0f0"), Tone("#b0b0b0", "#2c2f36"))
_FAINT = (Tone("#6b6b6b", "#fafafa"), Tone("#949494", "#1e2127"))

_RETAINED = Style("retained", "■", "blue", *_BLUE, "kept by a call with retain_graph=True", "bold")
_LET_GO = "let go of by a backward call"
_FREED = Style("freed", "○", "red", *_VERMILION, _LET_GO, "dashed", (6, 4))
_RUNS_AGAIN = "saved nothing: runs again at any time"
_MODIFIED = "modified in place after it was saved"
_STALE = Style("stale", "≠", "magenta", *_PURPLE, _MODIFIED, "dotted", (2, 3))


def _gone(word: str, meaning: str) -> Style:
    symbol = "\N{MULTIPLICATION SIGN}"
    return Style(word, symbol, "dim", *_FAINT, meaning, "dotted", (1, 4))


NODE_STATES: dict[NodeState, Style] = {
    NodeState.LIVE: Style("live", "●", "green", *_GREEN, "all it saved is there"),
    NodeState.RETAINED: _RETAINED,
    NodeState.FREED: _FREED,
    NodeState.STALE: _STALE,
    NodeState.BUFFERLESS: Style("bufferless", "·", "", *_GREY, _RUNS_AGAIN),
    NodeState.DESTROYED: _gone("destroyed", "no longer in memory"),
}

SAVED_STATES: dict[SavedState, Style] = {
    SavedState.SAVED: Style("saved", "●", "green", *_GREEN, "held by its graph"),
    SavedState.RETAINED: _RETAINED,
    SavedState.FREED: _FREED,
    SavedState.STALE: _STALE,
    SavedState.DROPPED: _gone("dropped", "went with its graph, without a backward call"),
}

_CUT_OFF = "a graph that no gradient enters"
WAY_STATES: dict[str, Style] = {
    "gradient": Style("gradient", "●", "green", *_GREEN, "a gradient arrives"),
    "no graph": Style("no graph", "·", "", *_FAINT, "values without a graph", "dotted"),
    "cut": Style("cut", "✂", "red", *_VERMILION, "the way of the gradient is cut", "bold"),
    "no gradient": Style("no gradient", "○", "", *_GREY, _CUT_OFF, "dashed"),
}
"""By what a line has to do with a gradient (``fixing.gradient_paths.LineState``)."""

_WILL_FAIL = "it will fail or leak if the program runs on"

SEVERITIES: dict[Severity, Style] = {
    Severity.ERROR: Style("error", "✗", "bold red", *_VERMILION, "the backward call fails"),
    Severity.WARNING: Style("warning", "▲", "bold yellow", *_AMBER, _WILL_FAIL),
    Severity.ADVICE: Style("advice", "i", "bold cyan", *_BLUE, "it works and could be cheaper"),
}

CELL_STATES: dict[CellState, Style] = {
    CellState.TRAINS: Style("trains", "●", "green", *_GREEN, "a step used its gradients"),
    CellState.REACHED: Style(
        "reached, use unknown", "○", "", *_GREY, "gradients came, no step is known to use"
    ),
    CellState.ZEROED: Style(
        "reached, zeroed unused", "○", "", *_GREY, "reset before a step used them"
    ),
    CellState.NEVER_USED: Style("never used", "▲", "yellow", *_AMBER, "no optimizer holds it"),
    CellState.CUT: Style("cut", "✂", "red", *_VERMILION, "no gradient gets past that line"),
    CellState.NO_WAY: Style("no way", "·", "", *_FAINT, "the loss is not computed from it"),
    CellState.FROZEN: Style("frozen", "-", "", *_FAINT, "requires_grad is off"),
    CellState.NO_GRADIENT: Style("no gradient", "?", "", *_GREY, "none came; why is not known"),
}

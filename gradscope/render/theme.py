"""The one table of colours, symbols and words for states and severities, used by text, dot and html alike.

A state is never told by colour alone: each has a word, a symbol and a line style of its own. The hues are those of
Okabe and Ito, which people with any of the common colour vision deficiencies can tell apart, darkened for a light
page and lightened for a dark one until they read well as text.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradscope.model import NodeState, SavedState, Severity


@dataclass(frozen=True, slots=True)
class Tone:
    """The colours on one page: ``ink`` for text and borders, ``fill`` for a box that ``Page.text`` is set on."""

    ink: str
    fill: str


@dataclass(frozen=True, slots=True)
class Look:
    """How one state or severity looks everywhere.

    ``symbol`` is one cell wide and ``ascii`` stands in where it cannot be written; ``terminal`` is a rich style;
    ``line`` is a line style of graphviz, ``dash`` the same for a canvas (lengths on and off; none is solid).
    """

    word: str
    symbol: str
    ascii: str
    terminal: str
    light: Tone
    dark: Tone
    line: str = "solid"
    dash: tuple[int, ...] = ()
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """Colours of the page itself: background, text, text of less weight, and rules or edges between things."""

    background: str
    text: str
    muted: str
    rule: str
    accent: str


LIGHT = Page(
    background="#ffffff", text="#1a1a1a", muted="#595959", rule="#8c8c8c", accent="#005a8f"
)
DARK = Page(background="#16181d", text="#e8e8e8", muted="#a6a6a6", rule="#6e6e6e", accent="#7cc4f0")

_GREEN = (Tone("#00654a", "#d5efe6"), Tone("#3fc79e", "#0f3d30"))
_BLUE = (Tone("#005a8f", "#d9ebf7"), Tone("#7cc4f0", "#12364d"))
_VERMILION = (Tone("#a84700", "#fbe3d3"), Tone("#ff9a57", "#4d2408"))
_PURPLE = (Tone("#a03c74", "#f6e1ee"), Tone("#e5a3c9", "#452237"))
_AMBER = (Tone("#7a5200", "#fcecc9"), Tone("#f0b93a", "#453205"))
_GREY = (Tone("#595959", "#f0f0f0"), Tone("#b0b0b0", "#2c2f36"))
_FAINT = (Tone("#6b6b6b", "#fafafa"), Tone("#949494", "#1e2127"))

_LIVE = Look("live", "●", "*", "green", *_GREEN, meaning="all it saved is there")
_SAVED = Look("saved", "●", "*", "green", *_GREEN, meaning="held by its graph")
_RETAINED = Look(
    "retained",
    "◆",
    "+",
    "blue",
    *_BLUE,
    line="bold",
    meaning="kept by a call with retain_graph=True",
)
_FREED = Look(
    "freed",
    "○",
    "o",
    "red",
    *_VERMILION,
    line="dashed",
    dash=(6, 4),
    meaning="let go of by a backward call",
)
_STALE = Look(
    "stale",
    "≠",
    "!",
    "magenta",
    *_PURPLE,
    line="dotted",
    dash=(2, 3),
    meaning="modified in place after it was saved",
)
_GONE = ("\N{MULTIPLICATION SIGN}", "x", "dim")

NODE_STATES: dict[NodeState, Look] = {
    NodeState.LIVE: _LIVE,
    NodeState.RETAINED: _RETAINED,
    NodeState.FREED: _FREED,
    NodeState.STALE: _STALE,
    NodeState.BUFFERLESS: Look(
        "bufferless", "·", ".", "", *_GREY, meaning="saved nothing: runs again at any time"
    ),
    NodeState.DESTROYED: Look(
        "destroyed", *_GONE, *_FAINT, line="dotted", dash=(1, 4), meaning="no longer in memory"
    ),
}

SAVED_STATES: dict[SavedState, Look] = {
    SavedState.SAVED: _SAVED,
    SavedState.RETAINED: _RETAINED,
    SavedState.FREED: _FREED,
    SavedState.STALE: _STALE,
    SavedState.DROPPED: Look(
        "dropped",
        *_GONE,
        *_FAINT,
        line="dotted",
        dash=(1, 4),
        meaning="went with its graph, without a backward call",
    ),
}

SEVERITIES: dict[Severity, Look] = {
    Severity.ERROR: Look(
        "error", "✗", "x", "bold red", *_VERMILION, meaning="the backward call fails"
    ),
    Severity.WARNING: Look(
        "warning", "▲", "!", "bold yellow", *_AMBER, meaning="it will fail or leak if this goes on"
    ),
    Severity.ADVICE: Look(
        "advice", "i", "i", "bold cyan", *_BLUE, meaning="it works and could be cheaper"
    ),
}

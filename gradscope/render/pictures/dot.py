"""Writes a picture in graphviz's DOT: with its texts for people, or as bare boxes for layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import graphviz

from gradscope.render.pictures.picture import (
    TIMES,
    Box,
    BoxKind,
    Group,
    GroupKind,
    LinkKind,
    Picture,
)
from gradscope.render.theme import LIGHT, NODE_STATES, SAVED_STATES
from gradscope.units import escaped

_FAST = {"nslimit": "0.1", "nslimit1": "0.1", "mclimit": "0.1", "splines": "line"}
_MANY = 150
"""For more links than this graphviz's optimum costs more than it is worth."""


def to_dot(picture: Picture) -> str:
    """Return DOT text that shows the whole picture by itself, with any graphviz."""
    graph = _graph()
    graph.attr("graph", bgcolor=LIGHT.background, fontcolor=LIGHT.text, labelloc="t")
    graph.attr("graph", label=_text([picture.title, picture.subtitle, *picture.notes]))
    _frames(graph, picture, _dress, _frame)
    for link in picture.links:
        plain = link.kind is LinkKind.PLAIN
        graph.edge(
            f"b{link.source}",
            f"b{link.target}",
            color=LIGHT.rule if plain else LIGHT.accent,
            penwidth="1" if plain else "2.5",
            **({"label": f"{TIMES}{link.count:,}"} if link.count > 1 else {}),
        )
    return str(graph.source)


def to_bare_dot(picture: Picture, sizes: Sequence[tuple[float, float]]) -> str:
    """Return DOT text of boxes of fixed sizes in points, without texts: all that a layout needs.

    A frame's title gets an empty line more, so that an arrow's head finds room below it.
    """
    graph = _graph()
    if len(picture.links) > _MANY:
        graph.attr("graph", **_FAST)

    def bare(box: Box) -> dict[str, str]:
        width, height = (f"{points / 72:.4f}" for points in sizes[box.id])
        return {"label": "", "width": width, "height": height, "fixedsize": "true"}

    _frames(graph, picture, bare, lambda group: {"label": _text([group.title, " "])})
    for link in picture.links:
        graph.edge(f"b{link.source}", f"b{link.target}")
    return str(graph.source)


def _graph() -> graphviz.Digraph:
    graph = graphviz.Digraph("gradscope")
    room = {"rankdir": "TB", "nodesep": "0.3", "ranksep": "0.38"}
    graph.attr("graph", **room, fontname="Helvetica", fontsize="12", labeljust="l")
    graph.attr("node", shape="box", fontname="Helvetica", fontsize="11")
    graph.attr("edge", fontname="Helvetica", fontsize="9", arrowsize="0.7")
    return graph


def _frames(
    graph: graphviz.Digraph,
    picture: Picture,
    box_dress: Callable[[Box], dict[str, str]],
    frame_dress: Callable[[Group], dict[str, str]],
    parent: int | None = None,
) -> None:
    """Declare each box inside the frames that it stands in."""
    for box in picture.boxes:
        if box.group == parent:
            graph.node(f"b{box.id}", **box_dress(box))
    for group in picture.groups:
        if group.parent == parent:
            with graph.subgraph(name=f"cluster_{group.id}") as inner:
                inner.attr("graph", **frame_dress(group))
                _frames(inner, picture, box_dress, frame_dress, group.id)


def _text(lines: Sequence[str]) -> str:
    """Return a label of lines that stay as they are: backslashes doubled, never taken for HTML."""
    parts = (graphviz.escape(escaped(line)) + r"\l" for line in lines if line)
    label: str = graphviz.nohtml("".join(parts))
    return label


def _dress(box: Box) -> dict[str, str]:
    """Return texts, fill, border and line style of one box."""
    lines = [f"root {box.root}" if box.root else "", box.alarm.upper()]
    look = NODE_STATES[box.state] if box.state is not None else None
    lines.append(f"{look.symbol if look else ''} {box.title}   {box.note}".strip())
    lines.append(box.caption)
    for row in box.rows:
        mark = SAVED_STATES[row.state].symbol + " " if row.state is not None else ""
        lines.append(f"  {mark}{row.text}   {row.note}".rstrip())
    dress = {"label": _text(lines), "style": "filled", "fontcolor": LIGHT.text}
    if look is not None:
        tone = look.light
        dress |= {"style": f"filled,{look.line}", "color": tone.ink, "fillcolor": tone.fill}
    else:
        dress |= {
            "style": "filled,rounded",
            "color": LIGHT.rule,
            "fillcolor": LIGHT.background,
        }
    if box.kind is BoxKind.FOLD:
        dress["peripheries"] = "2"
    if box.alarm:
        dress["penwidth"] = "3"
    return dress


def _frame(group: Group) -> dict[str, str]:
    shared = group.kind is GroupKind.SHARED
    return {
        "label": _text([group.title]),
        "style": "rounded,bold" if shared else "rounded,dashed",
        "color": LIGHT.accent if shared else LIGHT.rule,
        "fontcolor": LIGHT.text,
    }

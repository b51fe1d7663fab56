"""Writes a picture in graphviz's DOT language: with its texts for people, or as bare boxes for the layout."""

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
from gradscope.render.theme import DARK, LIGHT, NODE_STATES, SAVED_STATES, Look, Page, Tone

_FAST = {"nslimit": "0.1", "nslimit1": "0.1", "mclimit": "0.1"}
_COSTLY = 3_000
"""From this sum of link lengths on, graphviz's optimum costs more than it is worth."""


def to_dot(picture: Picture, *, theme: str = "light") -> str:
    """DOT text that shows the whole picture by itself, with any graphviz."""
    page = DARK if theme == "dark" else LIGHT
    graph = _graph()
    graph.attr("graph", bgcolor=page.background, fontcolor=page.text, labelloc="t")
    graph.attr("graph", label=_text([picture.title, picture.subtitle, *picture.notes]))

    def node(inner: graphviz.Digraph, box: Box) -> None:
        inner.node(f"b{box.id}", **_dress(box, page, theme))

    _frames(graph, picture, node, lambda group: _frame_dress(group, page))
    for link in picture.links:
        important = link.kind is not LinkKind.PLAIN
        text = {"label": f"{TIMES}{link.count:,}"} if link.count > 1 else {}
        colour = page.accent if important else page.rule
        graph.edge(
            f"b{link.source}",
            f"b{link.target}",
            color=colour,
            penwidth="2.5" if important else "1",
            **text,
        )
    return str(graph.source)


def to_bare_dot(picture: Picture, sizes: Sequence[tuple[float, float]], *, cost: int) -> str:
    """DOT text of boxes of fixed sizes in points, without their texts: all that a layout needs.

    A frame's title gets an empty line more, so that an arrow's head finds room below it.
    """
    graph = _graph()
    if cost > _COSTLY:
        graph.attr("graph", **_FAST)

    def node(inner: graphviz.Digraph, box: Box) -> None:
        width, height = sizes[box.id]
        inner.node(
            f"b{box.id}",
            label="",
            width=f"{width / 72:.4f}",
            height=f"{height / 72:.4f}",
            fixedsize="true",
        )

    _frames(graph, picture, node, lambda group: {"label": _text([group.title, " "])})
    for link in picture.links:
        graph.edge(f"b{link.source}", f"b{link.target}")
    return str(graph.source)


def _graph() -> graphviz.Digraph:
    graph = graphviz.Digraph("gradscope")
    graph.attr(
        "graph",
        rankdir="TB",
        nodesep="0.3",
        ranksep="0.38",
        fontname="Helvetica",
        fontsize="12",
        labeljust="l",
    )
    graph.attr("node", shape="box", fontname="Helvetica", fontsize="11")
    graph.attr("edge", fontname="Helvetica", fontsize="9", arrowsize="0.7")
    return graph


def _frames(
    graph: graphviz.Digraph,
    picture: Picture,
    node: Callable[[graphviz.Digraph, Box], None],
    dress: Callable[[Group], dict[str, str]],
    parent: int | None = None,
) -> None:
    """Declare each box inside the frames that it stands in."""
    for box in picture.boxes:
        if box.group == parent:
            node(graph, box)
    for group in picture.groups:
        if group.parent == parent:
            with graph.subgraph(name=f"cluster_{group.id}") as inner:
                inner.attr("graph", **dress(group))
                _frames(inner, picture, node, dress, group.id)


def _text(lines: Sequence[str]) -> str:
    """A label of lines that stay as they are: backslashes doubled, never taken for HTML."""
    label: str = graphviz.nohtml("".join(graphviz.escape(line) + r"\l" for line in lines if line))
    return label


def tone(look: Look, theme: str) -> Tone:
    """The colours of a state on this page."""
    return look.dark if theme == "dark" else look.light


def _dress(box: Box, page: Page, theme: str) -> dict[str, str]:
    """Texts, fill, border and line style of one box."""
    lines = [f"root {box.root}" if box.root else "", box.alarm.upper()]
    look = NODE_STATES[box.state] if box.state is not None else None
    lines.append(f"{look.symbol if look else ''} {box.title}   {box.note}".strip())
    lines.append(box.caption)
    for row in box.rows:
        mark = SAVED_STATES[row.state].symbol + " " if row.state is not None else ""
        lines.append(f"  {mark}{row.text}   {row.note}".rstrip())
    dress = {"label": _text(lines), "style": "filled", "fontcolor": page.text}
    if look is not None:
        colours = tone(look, theme)
        dress |= {"style": f"filled,{look.line}", "color": colours.ink, "fillcolor": colours.fill}
    else:
        dress |= {"style": "filled,rounded", "color": page.rule, "fillcolor": page.background}
    if box.kind is BoxKind.FOLD:
        dress["peripheries"] = "2"
    if box.alarm:
        dress["penwidth"] = "3"
    return dress


def _frame_dress(group: Group, page: Page) -> dict[str, str]:
    shared = group.kind is GroupKind.SHARED
    return {
        "label": _text([group.title]),
        "style": "rounded,bold" if shared else "rounded,dashed",
        "color": page.accent if shared else page.rule,
        "fontcolor": page.text,
    }

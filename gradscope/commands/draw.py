"""`gradscope draw`: draw a graph of a saved recording."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from rich.console import Console

from gradscope.commands.outputs import Image

_WIDEST = 1_000
"""Columns for a tree that goes to a file or another program, which can take lines of any length."""


class Engine(StrEnum):
    """What lays a picture out: the best there is, the one inside, graphviz's ``dot``, or plain rows."""

    AUTO = "auto"
    WASM = "wasm"
    DOT = "dot"
    SIMPLE = "simple"


class Theme(StrEnum):
    """The colours of a picture."""

    LIGHT = "light"
    DARK = "dark"


@dataclass(frozen=True, slots=True)
class DrawRequest:
    """The options of ``gradscope draw``."""

    call: int | None = None
    focus: str | None = None
    depth: int | None = None
    expand: tuple[str, ...] = ()
    fold: bool = True
    sites: bool = False
    engine: Engine = Engine.AUTO
    theme: Theme = Theme.LIGHT


def draw(file: Path, output: Path | None, request: DrawRequest) -> int:
    """Draw a graph of a saved recording: to a file, or as a tree."""
    from gradscope.render.pictures.draw import DrawOptions, recording_tree
    from gradscope.record.writer import load

    options = DrawOptions(
        focus=request.focus,
        depth=request.depth,
        expand=request.expand,
        fold=request.fold,
        sites=request.sites,
        engine=request.engine.value,
        theme=request.theme.value,
    )
    console = Console(file=sys.stdout)
    if output is not None:
        Image(output, "--output", call=request.call, options=options).write(load(file), console)
        return 0
    unicode = console.encoding.lower().startswith("utf")
    tree = recording_tree(load(file), call=request.call, plain_ascii=not unicode, **options)
    if not console.is_terminal:
        console.width = _WIDEST
    console.print(tree)
    return 0

"""One statement in a hundred layouts: every edit parses, takes the hazard away, and leaves every other token."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from edited import At, edited, is_part, run, tokens

from gradscope.fixing import moves, values
from gradscope.model import Site

START = """\
import asyncio
import contextlib
import torch
torch.manual_seed(0)
cell = torch.nn.Linear(4, 4)
class Box: pass
box, state, seen = Box(), {{}}, []
def keep(value): return value
{holder} = torch.zeros(2, 4)
# for three steps
for step in range(3):
    x = torch.randn(2, 4)
    # above
{statement}
    # below
    loss = {holder}.pow(2).mean()
    loss.backward()  # the call
"""

NEW = "torch.tanh(cell(x + {h}))"

STORES = {
    "plain": "{h} = NEW",
    "comment at the end": "{h} = NEW  # stored; here",
    "several lines": "{h} = torch.tanh(\n    cell(\n        x + {h}\n    )\n)",
    "comments inside": "{h} = torch.tanh(  # of\n    # the cell\n    cell(x + {h}),  # last\n)",
    "parentheses": "{h} = (\n    torch.tanh(cell(x + {h}))\n)",
    "backslash": "{h} = \\\n    torch.tanh(cell(x + \\\n        {h}))",
    "spaces": "{h}   =   torch . tanh( cell( x+{h} ) )",
    "two targets": "out, {h} = x, NEW",
    "two targets in parentheses": "(out, {h}) = (x, NEW)",
    "list of targets": "[out, {h}] = [x, NEW]",
    "chained targets": "out = {h} = NEW",
    "semicolons": "out = 1; {h} = NEW; out = 2",
    "semicolon at the end": "{h} = NEW;",
    "one-line body": "if step >= 0: {h} = NEW",
    "one-line body of two": "if step >= 0: out = 1; {h} = NEW  # both",
    "block": "if step >= 0:\n    {h} = NEW\nelse:\n    pass",
    "with": "with contextlib.nullcontext() as held, contextlib.nullcontext():\n    {h} = NEW",
    "one-line with": "with contextlib.nullcontext(): {h} = NEW",
    "try": "try:\n    {h} = NEW\nexcept ValueError:\n    raise\nelse:\n    pass\nfinally:\n    pass",
    "match": "match step:\n    case int():\n        {h} = NEW\n    case _:\n        pass",
    "nested loop": "for _ in [0]:\n    {h} = NEW",
    "while": "while True:\n    {h} = NEW\n    break",
    "not ASCII": "größe = 'é𝄞'; {h} = NEW",
    "triple quotes": "text = '''\n  of # two\nlines'''; {h} = NEW",
    "conditional": "{h} = NEW if step >= 0 else 0.0",
    "comprehension": "{h} = [torch.tanh(cell(x + {h})) for _ in [0]][0]",
}
"""Layouts of the statement that carries a state on; ``{h}`` is where the state is held."""

NAMES_ONLY = {
    "annotation": "{h}: torch.Tensor = NEW",
    "walrus": "keep(({h} := NEW))",
    "walrus in a condition": "if ({h} := NEW).sum() != 1:\n    pass",
    "walrus in a comprehension": "out = [({h} := NEW) for _ in [0]]",
}
"""What no attribute or element can be stored by."""

STYLES: dict[str, Callable[[str], bytes]] = {
    "as it is": lambda text: text.encode(),
    "tabs": lambda text: text.replace("    ", "\t").encode(),
    "two spaces": lambda text: text.replace("    ", "  ").encode(),
    "CRLF": lambda text: text.replace("\n", "\r\n").encode(),
    "no end": lambda text: text.rstrip("\n").encode(),
    "BOM": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "form feed": lambda text: text.replace("# for", "\x0c# for").encode(),
}


def program(layout: str, holder: str) -> str:
    code = layout.replace("NEW", NEW).replace("{h}", holder)
    return START.format(holder=holder, statement=textwrap.indent(code, "    "))


def within(at: At, text: str) -> Site:
    """Where a text stands in the statement: the first place of all may be above it."""
    first, start = at(text), at("# above")
    return first if first.line > start.line else at(f"2:{text}")


HOLDERS = ["h", "box.h", "state['h']"]

CASES = [
    pytest.param(layout, holder, style, id=f"{name}, {holder}, {style}")
    for row, (name, layout) in enumerate((STORES | NAMES_ONLY).items())
    for column, holder in enumerate(HOLDERS[: 1 if name in NAMES_ONLY else None])
    for style in [list(STYLES)[(row + column) % len(STYLES)]]
]


@pytest.mark.parametrize(("layout", "holder", "style"), CASES)
def test_a_state_is_cut_where_it_is_read(
    layout: str, holder: str, style: str, tmp_path: Path
) -> None:
    text = program(layout, holder)
    data = STYLES[style](text)
    reads = (f"x + {holder}", f"x+{holder}", f"    {holder}))", f"    {holder}\n")
    read = next(each for each in reads if each in text.partition("# above")[2])
    new = edited(data, lambda at: values.detach_reads(within(at, read), holder), tmp_path)
    assert run(data) == "freed"
    assert run(new) == "nothing"
    assert is_part(tokens(data), tokens(new))


@pytest.mark.parametrize(("layout", "holder", "style"), CASES)
def test_a_state_is_cut_after_the_call(
    layout: str, holder: str, style: str, tmp_path: Path
) -> None:
    data = STYLES[style](program(layout, holder))
    new = edited(data, lambda at: moves.detach_after(at("loss.backward()"), [holder]), tmp_path)
    assert run(new) == "nothing"
    assert is_part(tokens(data), tokens(new))


@pytest.mark.parametrize("layout", [*STORES.values(), *NAMES_ONLY.values()])
def test_a_state_is_cut_where_it_is_stored(layout: str, tmp_path: Path) -> None:
    """This cuts what trains the cell as well: here the question is whether it can be written."""
    text = program(layout, "h")
    stores = ("h := ", "h: ", "h = ", "h   =", "h] = ", "h) = ")
    store = next(each for each in stores if each in text.partition("# above")[2])
    data = text.encode()
    new = edited(data, lambda at: moves.detach_stored(within(at, store), "h"), tmp_path)
    assert is_part(tokens(data), tokens(new))
    assert run(new.replace(b"loss.backward()", b"keep(h.requires_grad and 1 / 0)")) == "nothing"

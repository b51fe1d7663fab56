"""One statement in a hundred layouts: every edit parses, takes the hazard away, and leaves every other token."""

from __future__ import annotations

import io
import textwrap
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gradscope.fixing import primitives
from gradscope.fixing.patch import apply, decoded
from gradscope.model import Edit, Site

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


def place(text: str, what: str, file: Path) -> Site:
    """The first place of a text, with columns; lines and columns count from 1."""
    before = text[: text.index(what, text.index("# above"))]
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    return Site(str(file), line, column, line, column + len(what))


def tokens(data: bytes) -> list[str]:
    layout = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)
    found = tokenize.tokenize(io.BytesIO(data).readline)
    return [token.string for token in found if token.type not in layout and token.string != ";"]


def is_part(few: list[str], many: list[str]) -> bool:
    """Whether all of the few are among the many, in this order."""
    rest: Iterator[str] = iter(many)
    return all(token in rest for token in few)


def run(data: bytes) -> str:
    """What a program raises, in a word."""
    try:
        exec(compile(data, "program", "exec"), {"__name__": "program"})
    except RuntimeError as error:
        return "freed" if "second time" in str(error) else "stale" * ("inplace" in str(error))
    return "nothing"


def changed(file: Path, data: bytes, edits: tuple[Edit, ...]) -> bytes:
    assert edits
    assert {edit.file for edit in edits} == {str(file)}
    return apply(decoded(str(file), data), edits).after.data


def written(tmp_path: Path, data: bytes) -> Path:
    file = tmp_path / "program.py"
    file.write_bytes(data)
    return file


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
    file = written(tmp_path, data)
    reads = (f"x + {holder}", f"x+{holder}", f"    {holder}))", f"    {holder}\n")
    at = place(text, next(each for each in reads if each in text).rstrip(), file)
    after = changed(file, data, primitives.detach_reads(at, holder))
    assert run(data) == "freed"
    assert run(after) == "nothing"
    assert is_part(tokens(data), tokens(after))


@pytest.mark.parametrize(("layout", "holder", "style"), CASES)
def test_a_state_is_cut_after_the_call(
    layout: str, holder: str, style: str, tmp_path: Path
) -> None:
    text = program(layout, holder)
    data = STYLES[style](text)
    file = written(tmp_path, data)
    call = place(text, "loss.backward()", file)
    after = changed(file, data, primitives.detach_after(call, [holder]))
    assert run(after) == "nothing"
    assert is_part(tokens(data), tokens(after))


STORED = {
    name: layout
    for name, layout in STORES.items()
    if "targets in" not in name and name not in ("two targets", "list of targets")
} | NAMES_ONLY


@pytest.mark.parametrize("name", STORED)
def test_a_state_is_cut_where_it_is_stored(name: str, tmp_path: Path) -> None:
    """What trains the cell is cut as well here: that is another question than whether it can be written."""
    text = program(STORED[name], "h")
    file = written(tmp_path, text.encode())
    at = place(
        text,
        next(w for w in ("h := ", "h: ", "h = ", "h   =") if w in text.partition("# above")[2]),
        file,
    )
    after = changed(file, text.encode(), primitives.detach_stored(at, "h"))
    assert is_part(tokens(text.encode()), tokens(after))
    assert run(after.replace(b"loss.backward()", b"keep(h.requires_grad and 1 / 0)")) == "nothing"

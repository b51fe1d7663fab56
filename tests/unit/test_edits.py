"""Edits at places: each is exactly the text that a person would write, or is not written at all."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from gradscope.code import source
from gradscope.fixing.constructs import made_once, uncached
from gradscope.fixing.edits import (
    computed_at,
    copying,
    moved,
    out_of_place,
    put_inside,
    rebinding,
    summed,
    summed_loop,
    unguarded,
    with_call,
    with_clones,
    with_flag,
    without_flag,
    without_graph,
)
from gradscope.fixing.instrumentation import Span
from gradscope.fixing.patch import TextEdit, TextEdits, apply, block_with, read, together, written
from gradscope.fixing.rehearsal import Kind

Write: TypeAlias = Callable[..., TextEdits]
"""Takes the places that are marked in the program, by where they begin, an outer one first."""
Case: TypeAlias = tuple[str, str, Write, str] | tuple[str, str, Write, str, str]
"""A name; a program with marks around places, what is written there, and the program then, empty
if it is refused; of an edit that goes wrong easily, how.
"""

REFUSED = ""
MARKS = str.maketrans("", "", "«»")
NOT_YET = {
    *("a sum in parentheses and a name", "a text of several lines", "several lines", "a condition"),
    *("a sum of several lines", "an empty line behind", "the only one, and a comma"),
}
"""Refused, or laid out in another way than one would by hand."""


def cloning(*leaves: str) -> Write:
    """Compute with clones of parameters with these names."""
    return lambda place: with_clones(place, leaves)


def places(file: str, program: str) -> list[Span]:
    """The places that are marked in a program."""
    spots: list[list[tuple[int, int]]] = []
    is_open: list[int] = []
    for at, letter in enumerate(program):
        head = program[:at].translate(MARKS)
        spot = head.count("\n") + 1, len(head[head.rfind("\n") + 1 :].encode())
        if letter == "«":
            is_open.append(len(spots))
            spots.append([spot])
        elif letter == "»":
            spots[is_open.pop()].append(spot)
    return [Span(file, *begin, *end) for begin, end in spots]


def edited(program: str, write: Write, folder: Path, encoding: str = "utf-8") -> bytes:
    """The content of a file with the edits made; empty if there are none."""
    file = folder / "program.py"
    file.write_bytes(program.translate(MARKS).encode(encoding))
    edits = written(*write(*places(str(file), program)))
    return apply(read(str(file)), edits).after.data if edits else b""


def swapped(write: Write) -> Write:
    """Give the places to an edit in the other order."""
    return lambda *spans: write(*reversed(spans))


def both(*writes: Write) -> Write:
    """Make each edit at its own place."""
    return lambda *spans: tuple(
        piece for write, span in zip(writes, spans, strict=True) for piece in write(span)
    )


def kinds(*each: Kind) -> frozenset[Kind]:
    return frozenset(each)


TENSOR = kinds("tensor")
STATES: Kind = ("tuple", TENSOR)
FROZEN: Kind = ("dataclass", kinds(("h", TENSOR)))


def cut(*each: Kind, method: str = "detach") -> Write:
    return lambda here: with_call(here, kinds(*each), method)


def added(here: Span) -> TextEdits:
    span = here.line, here.column, here.end_line, here.end_column
    return with_call(Span(here.file, *span, is_added=True), TENSOR, "detach")


def flag(name: str = "retain_graph", value: str = "True") -> Write:
    return lambda here: with_flag(here, name, value)


def unflag(name: str = "retain_graph") -> Write:
    return lambda here: without_flag(here, name)


def inside(here: Span, *loops: Span) -> TextEdits:
    """Put a statement into the first of the loops and functions that stands in its block."""
    file, node = here.statement
    found = [loop.statement[1] for loop in loops]
    known = (each for each in found if isinstance(each, source.LOOPS + source.FUNCTIONS))
    behind = [each for each in known if each in block_with(file, node)]
    return put_inside(file, [node], behind[0]) if behind else ()


def each_time(here: Span) -> TextEdits:
    guard = source.innermost(here.file, here.line, (ast.If, ast.Try)) or here.statement[1]
    return unguarded(here.file, guard)[1]


def each_time_anew(here: Span) -> TextEdits:
    return made_once(here.file, here.statement[1])[1]


def copied(here: Span, *cuts_and_last: Span) -> TextEdits:
    *cuts, last = cuts_and_last
    parts = [with_call(each, TENSOR, "detach") for each in cuts]
    _, node = here.statement
    return together(*parts, copying([node], [node], (last.file, last.line)))


def rebound(*, is_leaf: bool = False, **own: frozenset[Kind]) -> Write:
    names = {name.replace("__", "."): each for name, each in own.items()}
    return lambda here: rebinding(here, names, is_leaf=is_leaf)


def plain(here: Span) -> TextEdits:
    found = (pieces for each, pieces in uncached(here.file) if here.is_in(here.file, each))
    return next(found, ())


def no_graph(here: Span) -> TextEdits:
    return without_graph(here.file, here.line)


def computed(here: Span, read: Span) -> TextEdits:
    file, node = here.statement
    assert isinstance(node, ast.Assign)
    assert isinstance(read.expression, ast.Name)
    return computed_at(file, node, read.expression)


AGAIN = """
«y = net(x)»
a = f(y)
a.backward()
b = g(y)
«b.backward()»
"""


def in_a_function(program: str) -> str:
    return textwrap.indent(program, "    ").replace("\n", "def f(x):\n", 1)


KEPT = "loss.backward(retain_graph=True)\n"

CASES: dict[str, tuple[Case, ...]] = {
    "a value is cut": (
        ("a name", "y = f(«h»)\n", cut("tensor"), "y = f(h.detach())\n"),
        ("a number", "y = f(«h»)\n", cut("number", method="item"), "y = f(h.item())\n"),
        ("a clone", "y = f(«h[0]»)\n", cut("tensor", method="clone"), "y = f(h[0].clone())\n"),
        ("a call", "y = «f(x)».sum()\n", cut("tensor"), "y = f(x).detach().sum()\n"),
        ("a product", "y = «a * b» + c\n", cut("tensor"), "y = (a * b).detach() + c\n"),
        ("a sign", "y = g(«-a»)\n", cut("tensor"), "y = g((-a).detach())\n"),
        (
            "a sum in parentheses",
            "y = («a + b») * c\n",
            cut("tensor"),
            "y = ((a + b).detach()) * c\n",
        ),
        (
            "a sum of several lines",
            "y = g(«a  # one\n    + b»)  # two\n",
            cut("tensor"),
            "y = g((a  # one\n    + b).detach())  # two\n",
        ),
        (
            "a chain of several lines",
            "y = (\n    «f(x)\n    .sum()»\n)\n",
            cut("tensor"),
            "y = (\n    f(x)\n    .sum().detach()\n)\n",
        ),
        ("a condition", "f(«a if c else b»)\n", cut("tensor"), "f((a if c else b).detach())\n"),
        ("a tuple", "f(«h»)\n", cut(STATES), "f(tuple(t.detach() for t in h))\n"),
        ("a tuple named as its part", "f(«t»)\n", cut(STATES), "f(tuple(u.detach() for u in t))\n"),
        (
            "a tuple that a call gives",
            "f(«g(x)»)\n",
            cut(STATES),
            "f(tuple(t.detach() for t in g(x)))\n",
        ),
        (
            "a list of tuples",
            "f(«h»)\n",
            cut(("list", kinds(STATES))),
            "f([tuple(u.detach() for u in t) for t in h])\n",
        ),
        ("a dict", "f(«h»)\n", cut(("dict", TENSOR)), "f({k: t.detach() for k, t in h.items()})\n"),
        (
            "a dict that has others",
            "f(«h»)\n",
            cut(("dict", kinds("tensor", "other"))),
            'f({k: (t.detach() if hasattr(t, "detach") else t) for k, t in h.items()})\n',
        ),
        (
            "perhaps none",
            "f(«h»)\n",
            cut("tensor", "none"),
            "f((None if h is None else h.detach()))\n",
        ),
        (
            "perhaps no tuple",
            "f(«h»)\n",
            cut(STATES, "other"),
            "f((tuple(t.detach() for t in h) if isinstance(h, tuple) else h))\n",
        ),
        ("perhaps none of a call", "f(«g(x)»)\n", cut("tensor", "none"), REFUSED),
        ("a tensor or a tuple", "f(«h»)\n", cut("tensor", STATES), REFUSED),
        ("a tuple or a list", "f(«h»)\n", cut(STATES, ("list", TENSOR)), REFUSED),
        ("nothing known", "f(«h»)\n", cut(), REFUSED),
        ("no expression", "f(«hid»den)\n", cut("tensor"), REFUSED),
        ("a running total", "«total» += loss\n", added, REFUSED),
        (
            "a part of what a call gives",
            "f(«next(it)[0]»)\n",
            cut("tensor", "none"),
            REFUSED,
            "next() stands twice",
        ),
        (
            "a sum with a call",
            "f(«g(x) + y»)\n",
            cut("tensor", "other"),
            REFUSED,
            "g() stands twice",
        ),
    ),
    "a flag is passed": (
        ("no arguments", "«loss.backward()»\n", flag(), KEPT),
        ("white space", "«loss.backward( )»\n", flag(), KEPT),
        ("the statement", "«y = 1», loss.backward()\n", flag(), f"y = 1, {KEPT}"),
        (
            "another argument",
            "«loss.backward(inputs=[w])»\n",
            flag(),
            "loss.backward(inputs=[w], retain_graph=True)\n",
        ),
        ("a value", "«loss.backward(retain_graph=i > 0)»\n", flag(), KEPT),
        ("by position", "«loss.backward(g, False)»\n", flag(), "loss.backward(g, True)\n"),
        (
            "by position in grad",
            "import torch\n«torch.autograd.grad(loss, w, None, False)»\n",
            flag(),
            "import torch\ntorch.autograd.grad(loss, w, None, True)\n",
        ),
        (
            "grad",
            "import torch\ng = «torch.autograd.grad(loss, w)»\n",
            flag(),
            "import torch\ng = torch.autograd.grad(loss, w, retain_graph=True)\n",
        ),
        (
            "by position in autograd.backward",
            "import torch\n«torch.autograd.backward(loss, None, False)»\n",
            flag(),
            "import torch\ntorch.autograd.backward(loss, None, True)\n",
        ),
        (
            "another flag",
            "import torch\ng = «torch.autograd.grad(loss, w)»[0]\n",
            flag("create_graph"),
            "import torch\ng = torch.autograd.grad(loss, w, create_graph=True)[0]\n",
        ),
        (
            "several lines",
            "g = «torch.autograd.grad(\n    loss,  # the loss\n    w,\n)»\n",
            flag(),
            "g = torch.autograd.grad(\n    loss,  # the loss\n    w, retain_graph=True,\n)\n",
        ),
        ("options", "«loss.backward(**options)»\n", flag(), REFUSED),
        ("two calls", "«y = a».backward(), b.backward()\n", flag(), REFUSED),
        ("no call of the engine", "«y = f(x)»\n", flag(), REFUSED),
        (
            "grad by its name",
            "from torch.autograd import grad\ng = «grad(loss, w)»\n",
            flag(),
            "from torch.autograd import grad\ng = grad(loss, w, retain_graph=True)\n",
            "takes the inputs for the flag",
        ),
        (
            "the backward of another object",
            "«fabric.backward(loss, model)»\n",
            flag(),
            "fabric.backward(loss, model, retain_graph=True)\n",
            "takes its second argument for the flag",
        ),
        (
            "unpacked arguments",
            "«loss.backward(*given)»\n",
            flag(),
            REFUSED,
            "they may pass it as well",
        ),
    ),
    "a flag is left out": (
        ("only", "«loss.backward(retain_graph=True)»\n", unflag(), "loss.backward()\n"),
        (
            "first",
            "«loss.backward(retain_graph=True, inputs=[w])»\n",
            unflag(),
            "loss.backward(inputs=[w])\n",
        ),
        ("last", "«loss.backward(g, retain_graph=True)»\n", unflag(), "loss.backward(g)\n"),
        (
            "between",
            "«grad(loss, w, create_graph=True, allow_unused=True)»\n",
            unflag("create_graph"),
            "grad(loss, w, allow_unused=True)\n",
        ),
        (
            "on a line of its own",
            "«g = grad»(\n    loss,\n    w,\n    create_graph=True,\n)\n",
            unflag("create_graph"),
            "g = grad(\n    loss,\n    w,\n)\n",
        ),
        ("not there", "«loss.backward()»\n", unflag(), REFUSED),
        ("by position", "«loss.backward(g, True)»\n", unflag(), REFUSED),
        (
            "the only one, and a comma",
            "«loss.backward»(\n    retain_graph=True,\n)\n",
            unflag(),
            "loss.backward(\n)\n",
            "refused: the comma is left",
        ),
    ),
    "two losses are summed": (
        ("two lines", "«a.backward()»\n«b.backward()»\n", summed, "(a + b).backward()\n"),
        (
            "in a function, with a flag",
            """
            def f(a, b):
                «a.backward(retain_graph=True)»  # the first
                «b.backward()»
            """,
            summed,
            """
            def f(a, b):
                (a + b).backward()
            """,
        ),
        (
            "a loss made between",
            "«a.backward()»\nb = f(x)\n«b.backward()»\n",
            summed,
            "b = f(x)\n(a + b).backward()\n",
        ),
        (
            "expressions",
            "«(f(x) * 2).backward()»\n«(u - v).backward()»\n",
            summed,
            "(f(x) * 2 + (u - v)).backward()\n",
        ),
        (
            "a scaler",
            "«scaler.scale(first).backward()»\n«scaler.scale(second).backward()»\n",
            summed,
            "scaler.scale(first + second).backward()\n",
        ),
        (
            "a function",
            "«self.manual_backward(one)»\n«self.manual_backward(two)»\n",
            summed,
            "self.manual_backward(one + two)\n",
        ),
        ("two scalers", "«s.scale(one).backward()»\n«t.scale(two).backward()»\n", summed, REFUSED),
        ("a loss bound anew", "«a.backward()»\na = f(x)\n«b.backward()»\n", summed, REFUSED),
        (
            "a part bound anew",
            "«a[i].backward()»\nfor i in r: pass\n«b.backward()»\n",
            summed,
            REFUSED,
        ),
        ("in two blocks", "if c:\n    «a.backward()»\n«b.backward()»\n", summed, REFUSED),
        ("in one line of two", "if c: «a.backward()»\n«b.backward()»\n", summed, REFUSED),
        ("the other way round", "«b.backward()»\n«a.backward()»\n", swapped(summed), REFUSED),
        ("two in one line", "«a.backward()»; «b.backward()»\n", summed, REFUSED),
        (
            "other arguments",
            "«a.backward(inputs=[v])»\n«b.backward(inputs=[w])»\n",
            summed,
            REFUSED,
        ),
        (
            "a condition",
            "«(p * q).backward()»\n«(u if c else v).backward()»\n",
            summed,
            "((p * q + (u if c else v))).backward()\n",
            "`+` binds more than `if`",
        ),
        (
            "a sum of several lines",
            "«(u\n + v).backward()»\n«(a * b).backward()»\n",
            summed,
            "((u\n + v + a * b)).backward()\n",
            "SyntaxError: its lines are parsed without their parentheses",
        ),
        (
            "an attribute bound anew",
            "«s.a.backward()»\ns.a = f(x)\n«b.backward()»\n",
            summed,
            REFUSED,
            "only variables are asked for",
        ),
        (
            "a loss bound anew in the line of the call",
            "«a.backward()»\na = f(x); «b.backward()»\n",
            summed,
            REFUSED,
            "the last line is not asked for",
        ),
        (
            "results that are stored",
            "g = «grad(one, inputs=w)»\nh = «grad(two, inputs=w)»\nprint(g)\n",
            summed,
            REFUSED,
            "takes `g` out, which the program reads",
        ),
        (
            "a flag after the loss",
            "«fabric.backward(one, retain_graph=True)»\n«fabric.backward(two)»\n",
            summed,
            "fabric.backward(one + two)\n",
            "refused: a comma is left",
        ),
        (
            "a first call beside another statement",
            "y = 1; «a.backward()»\n«b.backward()»\n",
            summed,
            REFUSED,
            "the first call stays, so that its loss is there twice",
        ),
        (
            "a sum in parentheses and a name",
            "«a.backward()»\n«(u - v).backward()»\n",
            summed,
            "((a + u - v)).backward()\n",
            "refused: the parentheses are taken for a part of the call",
        ),
        (
            "names that are in others",
            "«fabric.backward(a)»\n«fabric.backward(b)»\n",
            summed,
            "fabric.backward(a + b)\n",
            "refused: takes the letter out of `fabric`",
        ),
        (
            "an empty line behind",
            "«a.backward()»\n\n«b.backward()»\n",
            summed,
            "\n(a + b).backward()\n",
            "the empty line goes as well",
        ),
    ),
    "the losses of a loop are summed": (
        (
            "a list",
            "for loss in losses:\n    «loss.backward(»retain_graph=True)\nstep()\n",
            summed_loop,
            "sum(losses).backward()\nstep()\n",
        ),
        (
            "in one line",
            "for loss in f(x): «loss.backward(»)\n",
            summed_loop,
            "sum(f(x)).backward()\n",
        ),
        (
            "a tuple",
            "for loss in (a, b):\n    «loss.backward(»)\n",
            summed_loop,
            "sum((a, b)).backward()\n",
        ),
        (
            "more in the loop",
            "for loss in losses:\n    «loss.backward(»)\n    step()\n",
            summed_loop,
            "all_losses = []\nfor loss in losses:\n    all_losses.append(loss)\n    step()\n"
            "sum(all_losses).backward()\n",
        ),
        (
            "an else",
            "for loss in losses:\n    «loss.backward(»)\nelse:\n    step()\n",
            summed_loop,
            REFUSED,
        ),
        (
            "what each gives",
            "for job in jobs:\n    «job.result().b»ackward()\n[job.result() for job in jobs]\n",
            summed_loop,
            "sum(job.result() for job in jobs).backward()\n[job.result() for job in jobs]\n",
        ),
        ("another target", "for loss in losses:\n    «x.back»ward()\n", summed_loop, REFUSED),
        ("no loop", "if losses:\n    «loss.backward(»)\n", summed_loop, REFUSED),
        (
            "losses without parentheses",
            "for loss in a, b:\n    «loss.backward(»)\n",
            summed_loop,
            "sum((a, b)).backward()\n",
            "the second becomes the start of the sum",
        ),
        (
            "a loss that is read later",
            "for loss in losses:\n    «loss.backward(»)\nprint(loss)\n",
            summed_loop,
            "all_losses = []\nfor loss in losses:\n    all_losses.append(loss)\n"
            "sum(all_losses).backward()\nprint(loss)\n",
        ),
    ),
    "a statement is moved": (
        ("behind the next", "«step()»\n«b.backward()»\n", moved, "b.backward()\nstep()\n"),
        (
            "behind the last line of a file",
            "«step()»\nx = 1\n«b.backward()»",
            moved,
            "x = 1\nb.backward()\nstep()",
        ),
        (
            "several lines",
            """
            def f():
                «w.add_(»  # more
                    1,
                )
                y = 2  # two
                «b.backward()»  # here
                return y
            """,
            moved,
            """
            def f():
                y = 2  # two
                b.backward()
                w.add_(  # more
                    1,
                )  # here
                return y
            """,
        ),
        (
            "behind a block",
            "«step()»\nif c:\n    «b.backward()»\nelse:\n    pass\nx = 1\n",
            moved,
            "if c:\n    b.backward()\nelse:\n    pass\nstep()\nx = 1\n",
        ),
        ("back", "«b.backward()»\n«step()»\n", swapped(moved), REFUSED),
        (
            "with its block",
            "if c:\n    «step()»\n«b.backward()»\n",
            moved,
            "b.backward()\nif c:\n    step()\n",
        ),
        (
            "with its line",
            "if c: «step()»\n«b.backward()»\n",
            moved,
            "b.backward()\nif c: step()\n",
        ),
        ("beside another", "«step()»; x = 1\n«b.backward()»\n", moved, REFUSED),
        ("behind one beside another", "«step()»\n«b.backward()»; x = 1\n", moved, REFUSED),
        (
            "a text of several lines",
            '''
def f():
    «w.add_(»len("""
a
"""))
    «b.backward()»
''',
            moved,
            '\ndef f():\n    b.backward()\n    w.add_(len("""\na\n"""))\n',
            "the text is indented",
        ),
        (
            "a value that is read before",
            "«x = step»()\ny = g(x)\n«b.back»ward()\n",
            moved,
            REFUSED,
            "NameError: `y` reads it",
        ),
        (
            "behind a return",
            "def f(b):\n    «step()»\n    return «b.back»ward()\n",
            moved,
            REFUSED,
            "never runs there",
        ),
    ),
    "a statement is put inside": (
        (
            "a loop",
            "«w = f(v)»\nx = 1\n«for »i in r:\n    # each\n    use(w)\n",
            inside,
            "x = 1\nfor i in r:\n    # each\n    w = f(v)\n    use(w)\n",
        ),
        (
            "a deeper one, of several lines",
            """
            def f():
                «w = g(»
                    v,
                )
                «while» True:

                    use(w)
            """,
            inside,
            """
            def f():
                while True:

                    w = g(
                        v,
                    )
                    use(w)
            """,
        ),
        (
            "the outer of two",
            "«w = f(v)»\n«for i» in r:\n    «for j» in r:\n        use(w)\n",
            inside,
            "for i in r:\n    w = f(v)\n    for j in r:\n        use(w)\n",
        ),
        ("read between", "«w = f»(v)\nprint(w)\n«for »i in r:\n    use(w)\n", inside, REFUSED),
        ("in one line", "«w = f»(v)\n«for »i in r: use(w)\n", inside, REFUSED),
        ("taken", "«w =» next(v)\n«for »i in r:\n    use(w)\n", inside, REFUSED),
        ("behind the loop", "«for »i in r:\n    use(w)\n«w = f»(v)\n", swapped(inside), REFUSED),
        (
            "what the loop runs over",
            "«w = f»(v)\n«for »i in w:\n    use(i, w)\n",
            inside,
            REFUSED,
            "NameError at its head",
        ),
        (
            "of what is bound anew between",
            "«w = f»(v)\nv = 1\n«for »i in r:\n    use(w)\n",
            inside,
            REFUSED,
            "computes it of another value",
        ),
        (
            "what fills a list",
            "k = []\n«for v» in r:\n    k.append(f(v))\n«for i» in r:\n    g(k)\n",
            inside,
            REFUSED,
            "it would grow with each iteration",
        ),
        (
            "of what the loop gives",
            "«w = f»(v)\n«for »v in r:\n    use(w)\n",
            inside,
            REFUSED,
            "computes it of another value",
        ),
        (
            "a text of several lines",
            '«w = f»("""\na""")\n«for »i in r:\n    use(w)\n',
            inside,
            'for i in r:\n    w = f("""\na""")\n    use(w)\n',
            "the text is indented",
        ),
    ),
    "a statement is put into a function": (
        (
            "behind its docstring",
            "«w = f(v)»\n«def g»(x):\n    'what'\n    return x * w\nuse(g)\n",
            inside,
            "def g(x):\n    'what'\n    w = f(v)\n    return x * w\nuse(g)\n",
        ),
        (
            "beside another that has its own of that name",
            "def h(w):\n    return w\n«w = f(v)»\n«def g»():\n    return w\n",
            inside,
            "def h(w):\n    return w\ndef g():\n    w = f(v)\n    return w\n",
        ),
        ("read behind it", "«w =» f(v)\n«def g»():\n    return w\nuse(w)\n", inside, REFUSED),
        (
            "read by another function",
            "def h():\n    return w\n«w =» f(v)\n«def g»():\n    return w\n",
            inside,
            REFUSED,
        ),
        ("a default", "«w = f»(v)\n«def g»(x=w):\n    return w\n", inside, REFUSED),
        ("an argument", "«w = f»(v)\n«def g»(w):\n    return w\n", inside, REFUSED),
        (
            "of what the function binds",
            "«w = f»(v)\n«def g»():\n    v = 1\n    return w, v\n",
            inside,
            REFUSED,
        ),
        ("taken", "«w =» next(v)\n«def g»():\n    return w\n", inside, REFUSED),
        ("called, before a function", "«a.build»(v)\n«def g»():\n    return a\n", inside, REFUSED),
        (
            "called, before a loop",
            "«a.build»(v)\n«for x» in y:\n    use(a, x)\n",
            inside,
            "for x in y:\n    a.build(v)\n    use(a, x)\n",
        ),
    ),
    "a change in place is made out of place": (
        ("read below", "«h += 0.1 * g»\nf(h)\n", out_of_place, "h = h + 0.1 * g\nf(h)\n"),
        (
            "read further up in a loop",
            "for g in gs:\n    f(h)\n    «h.mul_(g)»\n",
            out_of_place,
            "for g in gs:\n    f(h)\n    h = h.mul(g)\n",
        ),
        ("read by others", "w = a.w\nn = f(w)\n«w.div_(n)»\na()\n", out_of_place, REFUSED),
    ),
    "a module computes with clones": (
        (
            "of its parameters",
            "import torch\ny = f(«self.l(x)»)\n",
            cloning(),
            "import torch\ny = f(torch.func.functional_call(self.l, {k: p.clone() for k, p in self.l.named_parameters()}, (x,)))\n",
        ),
        ("with options", "import torch\ny = «self.l(x, a=1)»\n", cloning(), REFUSED),
        ("with no torch at hand", "y = «self.l(x)»\n", cloning(), REFUSED),
        (
            "where one is read",
            "y = f(«x @ self.l.w.t() + self.w»)\n",
            cloning("net.l.w"),
            "y = f(x @ self.l.w.clone().t() + self.w)\n",
        ),
        ("where another is read", "y = «x @ self.l.w»\n", cloning("net.k.w"), REFUSED),
    ),
    "what is stored once is stored each time": (
        (
            "a key that is not there",
            "def f(k):\n    «if» k not in kept:\n        x = g(k)\n\n        # a pair\n        kept[k] = h(x)\n    return kept[k]\n",
            each_time,
            "def f(k):\n    x = g(k)\n\n    # a pair\n    kept[k] = h(x)\n    return kept[k]\n",
        ),
        (
            "an attribute that is None",
            "def f(self):\n    «if» self.w is None: self.w = g()\n    return self.w\n",
            each_time,
            "def f(self):\n    self.w = g()\n    return self.w\n",
        ),
        (
            "an attribute that is missing",
            "def f(self):\n    «if» not hasattr(self, 'w'):\n        self.w = g()\n    return self.w\n",
            each_time,
            "def f(self):\n    self.w = g()\n    return self.w\n",
        ),
        (
            "what is returned where it is there",
            "def f(k):\n    «if» k in kept:\n        return kept[k]\n    kept[k] = g(k)\n    return kept[k]\n",
            each_time,
            "def f(k):\n    kept[k] = g(k)\n    return kept[k]\n",
        ),
        (
            "what is read first",
            "def f(k):\n    w = kept.get(k)\n    «if» w is None:\n        w = kept[k] = g(k)\n    return w\n",
            each_time,
            "def f(k):\n    w = kept[k] = g(k)\n    return w\n",
        ),
        (
            "what is read otherwise",
            "def f():\n    global w\n    «if» w is not None:\n        x = w\n    else:\n        x = w = g()\n",
            each_time,
            "def f():\n    global w\n    x = w = g()\n",
        ),
        (
            "what is not found",
            "def f(k):\n    «try»:\n        return kept[k]\n    except KeyError:\n        kept[k] = g(k)\n        return kept[k]\n",
            each_time,
            "def f(k):\n    kept[k] = g(k)\n    return kept[k]\n",
        ),
        ("another condition", "«if» step % 9 == 0:\n    self.w = g()\n", each_time, REFUSED),
        ("another way", "if a:\n    b()\n«elif» not a.w:\n    a.w = g()\n", each_time, REFUSED),
        ("else", "«if» not a.w:\n    a.w = g()\nelse:\n    use(a)\n", each_time, REFUSED),
        (
            "renewed",
            "«if» a.w is None:\n    a.w = g(x)\nelse:\n    a.w = 0.9 * a.w + g(x)\n",
            each_time,
            REFUSED,
        ),
        ("taken", "«if» a.w is None:\n    a.w = next(b)\n", each_time, REFUSED),
        ("a variable", "def f(w):\n    «if» w is None:\n        w = g()\n", each_time, REFUSED),
    ),
    "what an object computes once is computed each time": (
        (
            "as it is made",
            "class A:\n    def __init__(self, n):\n        self.n = n\n        «self.w» = self.p + 1\n\n    def f(self, x):\n        return self.w * x\n",
            each_time_anew,
            "class A:\n    def __init__(self, n):\n        self.n = n\n\n    @property\n    def w(self):\n        return self.p + 1\n\n    def f(self, x):\n        return self.w * x\n",
        ),
        (
            "by a method",
            "class A:\n    def bind(self):\n        «self.w» = g(self.p)\n\n    def forward(self, x):\n        return self.w * x\n",
            each_time_anew,
            "class A:\n    def bind(self):\n        self.w = g(self.p)\n\n    def forward(self, x):\n        self.bind()\n        return self.w * x\n",
        ),
        (
            "of what is gone by then",
            "class A:\n    def __init__(self, n):\n        «self.w» = g(n)\n\n    def f(self):\n        return self.w\n",
            each_time_anew,
            REFUSED,
        ),
        (
            "set elsewhere",
            "class A:\n    def __init__(self):\n        «self.w» = self.p + 1\n\na.w = 2\n",
            each_time_anew,
            REFUSED,
        ),
        (
            "with arguments",
            "class A:\n    def bind(self, n):\n        «self.w» = g(n)\n\n    def forward(self, x):\n        return self.w * x\n",
            each_time_anew,
            REFUSED,
        ),
        (
            "what is returned",
            "class A:\n    def made(self):\n        «w» = g(self.p)\n        return w\n\n    def forward(self, x):\n        return self.w * x\n",
            each_time_anew,
            REFUSED,
        ),
    ),
    "a statement is copied": (
        ("before its last reader", AGAIN, copied, AGAIN.replace("b = g", "y = net(x)\nb = g")),
        (
            "and cut before",
            AGAIN.replace("net(x)", "«net(x)»"),
            copied,
            AGAIN.replace("net(x)", "net(x).detach()").replace("b = g", "y = net(x)\nb = g"),
        ),
        (
            "in a function",
            in_a_function(AGAIN),
            copied,
            in_a_function(AGAIN.replace("b = g", "y = net(x)\nb = g")),
        ),
        (
            "read only once",
            AGAIN.replace("«b.backward()»", "b.backward()").replace("a.back", "«a».back"),
            copied,
            REFUSED,
        ),
        ("a cut that cannot be", AGAIN.replace("net", "«ne»t"), copied, REFUSED),
        ("taken", AGAIN.replace("net", "next"), copied, REFUSED),
        (
            "its reader in one line with another",
            AGAIN.replace("b = g", "if c: b = g"),
            copied,
            AGAIN.replace("b = g", "y = net(x)\nif c: b = g"),
        ),
        ("its reader behind another", AGAIN.replace("()\nb = g", "(); b = g"), copied, REFUSED),
        (
            "its value bound anew",
            AGAIN.replace("b = g", "y = y * 2\nb = g"),
            copied,
            REFUSED,
            "loses `y = y * 2`",
        ),
        (
            "what it reads bound anew",
            AGAIN.replace("b = g", "x = 1\nb = g"),
            copied,
            REFUSED,
            "computes it of another value",
        ),
    ),
    "a variable is detached before": (
        (
            "in a loop",
            "for x in xs:\n    «y = f»(x, h)\n",
            rebound(h=TENSOR),
            "for x in xs:\n    h = h.detach()\n    y = f(x, h)\n",
        ),
        (
            "two in a method",
            """
            class A:
                def f(self, x):
                    "what it does"
                    global c
                    «if x»:
                        pass
            """,
            rebound(self__h=kinds(STATES, "none"), c=TENSOR),
            """
            class A:
                def f(self, x):
                    "what it does"
                    global c
                    self.h = None if self.h is None else tuple(t.detach() for t in self.h)
                    c = c.detach()
                    if x:
                        pass
            """,
        ),
        (
            "above a decorator",
            "for x in xs:\n    @d\n    «def f»():\n        return h\n",
            rebound(h=TENSOR),
            "for x in xs:\n    h = h.detach()\n    @d\n    def f():\n        return h\n",
        ),
        (
            "a leaf",
            "for x in xs:\n\t«y = f»(x, h)\n",
            rebound(h=TENSOR, is_leaf=True),
            "for x in xs:\n\th = h.detach().requires_grad_()\n\ty = f(x, h)\n",
        ),
        (
            "leaves in a tuple",
            "for x in xs:\n    «f(h)»\n",
            rebound(h=kinds(STATES), is_leaf=True),
            "for x in xs:\n    h = tuple(t.detach().requires_grad_() for t in h)\n    f(h)\n",
        ),
        ("of unknown kind", "for x in xs:\n    «f(h)»\n", rebound(h=kinds("other")), REFUSED),
        ("in one line", "for x in xs: «f(h)»\n", rebound(h=TENSOR), REFUSED),
        (
            "a list that is an argument, and goes on to be used by who gave it",
            "def run(x, hs):\n    «use»(x, hs)\n",
            rebound(hs=kinds(("list", TENSOR))),
            "def run(x, hs):\n    hs[:] = [t.detach() for t in hs]\n    use(x, hs)\n",
        ),
        (
            "a dict that a loop gives",
            "for h in hs:\n    «use»(h)\n",
            rebound(h=kinds(("dict", TENSOR))),
            "for h in hs:\n    h.update({k: t.detach() for k, t in h.items()})\n    use(h)\n",
        ),
        (
            "a tuple that is an argument",
            "def run(x, h):\n    «use»(x, h)\n",
            rebound(h=kinds(STATES)),
            "def run(x, h):\n    h = tuple(t.detach() for t in h)\n    use(x, h)\n",
        ),
        (
            "a tuple with a list in it that is an argument",
            "def run(x, h):\n    «use»(x, h)\n",
            rebound(h=kinds(("tuple", kinds(("list", TENSOR))))),
            REFUSED,
        ),
        (
            "a named tuple",
            "for x in xs:\n    «use»(x, s)\n",
            rebound(s=kinds(("namedtuple", kinds(("h", TENSOR), ("c", kinds(STATES)))))),
            "for x in xs:\n    s = s._replace(c=tuple(t.detach() for t in s.c), h=s.h.detach())\n"
            "    use(x, s)\n",
        ),
        (
            "a frozen dataclass",
            "import dataclasses as d\nfor x in xs:\n    «use»(x, s)\n",
            rebound(s=kinds(FROZEN, ("dataclass", kinds()))),
            "import dataclasses as d\nfor x in xs:\n    s = d.replace(s, h=s.h.detach())\n"
            "    use(x, s)\n",
        ),
        (
            "that cannot be replaced",
            "for x in xs:\n    «f(s)»\n",
            rebound(s=kinds(FROZEN)),
            REFUSED,
        ),
        (
            "an object that is an argument",
            "def run(x, s):\n    «use»(x, s)\n",
            rebound(s=kinds(("object", kinds(("h", TENSOR))))),
            "def run(x, s):\n    s.h = s.h.detach()\n    use(x, s)\n",
        ),
        (
            "a global that is only read",
            "h = new()\ndef f(x):\n    «return» g(x, h)\n",
            rebound(h=TENSOR),
            REFUSED,
            "UnboundLocalError: it becomes a local variable",
        ),
    ),
    "a cache is taken off": (
        (
            "a cache",
            "@functools.lru_cache(maxsize=None)  # once\ndef f(x):\n    «return» g(x)\n",
            plain,
            "def f(x):\n    return g(x)\n",
        ),
        (
            "one of two decorators",
            "class A:\n    @staticmethod\n    @cache\n    def f(x):\n        «return» g(x)\n",
            plain,
            "class A:\n    @staticmethod\n    def f(x):\n        return g(x)\n",
        ),
        (
            "a property",
            "class A:\n    @functools.cached_property\n    def f(self):\n        «return» g(self)\n",
            plain,
            "class A:\n    @property\n    def f(self):\n        return g(self)\n",
        ),
        (
            "a call",
            "from functools import lru_cache as memo\ndef f(x):\n    «return» g(x)\nh = memo(9)(f)\n",
            plain,
            "from functools import lru_cache as memo\ndef f(x):\n    return g(x)\nh = f\n",
        ),
        ("another call", "def f(x):\n    «return» g(x)\nh = memo(9)(f)\n", plain, REFUSED),
        ("asked for", "@cache\ndef f(x):\n    «ret»urn g(x)\nf.cache_clear()\n", plain, REFUSED),
        ("no cache", "@torch.no_grad()\ndef f(x):\n    «return» g(x)\n", plain, REFUSED),
        ("no decorator", "def f(x):\n    «return» g(x)\n", plain, REFUSED),
        ("no function", "y = «g(x)»\n", plain, REFUSED),
        (
            "several lines",
            "@cache(\n    f=1,\n)\ndef f():\n    «ret»urn 1\n",
            plain,
            "def f():\n    return 1\n",
            "refused: only its first line is taken out",
        ),
        (
            "a property that is deleted",
            """
class A:
    @cached_property
    def f(self):
        «return» g(self)
    def clear(self):
        del self.f
""",
            plain,
            REFUSED,
            "AttributeError: a property has no deleter",
        ),
    ),
    "a statement builds no graph": (
        (
            "a value",
            "import torch\n«y =» f(x)  # it\n",
            no_graph,
            "import torch\nwith torch.no_grad():\n    y = f(x)  # it\n",
        ),
        (
            "a loop",
            """
            import torch
            def f(xs):
                «for x» in xs:
                    a = g(
                        x)
                    b = h(a)
                return b
            """,
            no_graph,
            """
            import torch
            def f(xs):
                with torch.no_grad():
                    for x in xs:
                        a = g(
                            x)
                        b = h(a)
                return b
            """,
        ),
        (
            "with tabs",
            "import torch\ndef f(x):\n\t«return» g(\n\t\tx)\n",
            no_graph,
            "import torch\ndef f(x):\n\twith torch.no_grad():\n\t\treturn g(\n\t\t\tx)\n",
        ),
        ("a text of several lines", 'import torch\n«y =» f("""\na""")\n', no_graph, REFUSED),
        (
            "a formatted text of several lines",
            'import torch\n«for x» in xs:\n    y = f(f"""\n{x}""")\n',
            no_graph,
            REFUSED,
        ),
        ("in one line", "import torch\nif c: «y =» f(x)\n", no_graph, REFUSED),
        ("beside another", "import torch\n«y =» f(x); z = 1\n", no_graph, REFUSED),
        ("a function", "import torch\n«def» f(x):\n    pass\n", no_graph, REFUSED),
        ("without torch", "import torch as t\n«y =» f(x)\n", no_graph, REFUSED),
        (
            "a yield",
            "import torch\ndef f():\n    «yield» g(x)\n",
            no_graph,
            REFUSED,
            "who takes the value runs without a graph as well",
        ),
        ("no statement", "import torch\n«# nothing»\ny = 1\n", no_graph, REFUSED, "IndexError"),
        (
            "an empty line in a loop",
            "import torch\n«for x» in xs:\n    f(x)\n\n    g(x)\n",
            no_graph,
            "import torch\nwith torch.no_grad():\n    for x in xs:\n        f(x)\n\n        g(x)\n",
            "the empty line gets white space",
        ),
    ),
    "pieces are put together": (
        (
            "two in one line",
            "y = f(«a», «b»)\n",
            swapped(both(cut("tensor"), cut("tensor"))),
            "y = f(a.detach(), b.detach())\n",
        ),
        (
            "two in lines apart",
            "y = f(«a»)\nx = 1\nz = f(«b»)\n",
            swapped(both(cut("tensor"), cut("tensor"))),
            "y = f(a.detach())\nx = 1\nz = f(b.detach())\n",
        ),
        (
            "two of one expression of several lines",
            "y = f(«a»,\n      «b»)\n",
            both(cut("tensor"), cut("tensor")),
            "y = f(a.detach(),\n      b.detach())\n",
        ),
        ("the same twice", "f(««a»»)\n", both(cut("tensor"), cut("tensor")), "f(a.detach())\n"),
        (
            "above and in a line",
            "for x in xs:\n    «f(«h»)»\n",
            both(rebound(h=TENSOR), cut("tensor", method="clone")),
            "for x in xs:\n    h = h.detach()\n    f(h.clone())\n",
        ),
        ("one within another", "f(«g(«a»)»)\n", both(cut("tensor"), cut("tensor")), REFUSED),
        (
            "a change of what is gone",
            "«step(«h»)»\n«b.back»ward()\n",
            lambda step, h, call: (*moved(step, call), *with_call(h, TENSOR, "detach")),
            REFUSED,
        ),
    ),
    "a value is computed where it is read": (
        (
            "in its function",
            "def f(x):\n    y = «D(x) + 1»\n    return bce(«y», 1)\n",
            computed,
            "def f(x):\n    y = D(x) + 1\n    return bce((D(x) + 1), 1)\n",
        ),
        ("in another one", "w = «f(v)»\ndef g():\n    return «w»\n", computed, REFUSED),
        ("taken", "w = «next»(v)\n«w»\n", computed, REFUSED),
        ("of itself", "w = «f(w)»\n«w»\n", computed, REFUSED),
    ),
}


def params() -> list[Any]:
    found = []
    for group, cases in CASES.items():
        for name, program, write, expected, *wrong in cases:
            reason = wrong[0] if wrong and name in NOT_YET else None
            marks = [pytest.mark.xfail(strict=True, reason=reason)] if reason else []
            found.append(pytest.param(program, write, expected, marks=marks, id=f"{group}: {name}"))
    return found


@pytest.mark.parametrize(("program", "write", "expected"), params())
def test_an_edit(program: str, write: Write, expected: str, tmp_path: Path) -> None:
    after = edited(textwrap.dedent(program), write, tmp_path).decode()
    assert after == textwrap.dedent(expected).translate(MARKS)
    ast.parse(after)


def test_nothing_is_written_where_the_file_would_not_parse(tmp_path: Path) -> None:
    def write(here: Span) -> TextEdits:
        return (TextEdit(here.file, (here.line, 0), (here.line, 0), "    "),)

    assert edited("y = 1\n«x» = 2\n", write, tmp_path) == b""
    assert edited("y = 1\nx = 2\n", lambda: (), tmp_path) == b""


def test_the_pieces_of_two_files_are_one_change(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.py", "b.py")]
    for file in files:
        file.write_text("f(h)\n")
    spans = [span for file in files for span in places(str(file), "f(«h»)\n")]
    edits = written(*(p for each in spans for p in with_call(each, TENSOR, "detach")))
    assert [(e.file, e.line, e.replacement, e.end_line) for e in edits] == [
        (str(file), 1, "f(h.detach())", 1) for file in files
    ]


@pytest.mark.parametrize(
    ("encoding", "program", "write", "after"),
    [
        ("utf-8", "été = f('é', «h»)\n", cut("tensor"), "été = f('é', h.detach())\n"),
        ("utf-8", "f('é', «a»); f('ß', «b»)\n", both(cut("tensor"), cut("tensor")), "f('é', a.detach()); f('ß', b.detach())\n"),
        ("utf-8-sig", "f(«h»)\n", cut("tensor"), "f(h.detach())\n"),
        ("latin-1", "# coding: latin-1\nf('é', «h»)\n", cut("tensor"), "# coding: latin-1\nf('é', h.detach())\n"),
        ("utf-8", "x = 1\r\n«step()»\r\n«b.backward()»\r\n", moved, "x = 1\r\nb.backward()\r\nstep()\r\n"),
        ("utf-8", "y = f(«a\r\n  + b»)\r\n", cut("tensor"), "y = f((a\r\n  + b).detach())\r\n"),
        ("utf-8", "import torch\r\n«for x» in y:\r\n  f(x)", no_graph, "import torch\r\nwith torch.no_grad():\r\n    for x in y:\r\n      f(x)"),
        ("utf-8", "x = 1\n«step()»\n«b.backward()»", summed, ""),
        ("utf-8", "f(«h»)", cut("tensor"), "f(h.detach())"),
    ],
    ids=["not ASCII", "two places", "BOM", "latin-1", "CRLF", "CRLF in an expression", "CRLF and no end", "refused", "no end"],
)  # fmt: skip
def test_a_file_keeps_its_encoding_and_its_ends(
    encoding: str, program: str, write: Write, after: str, tmp_path: Path
) -> None:
    expected = after.encode(encoding) if after else b""
    assert edited(program, write, tmp_path, encoding) == expected

"""Edits at places: each is exactly the text that a person would write, or is not written at all."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from gradscope.code import source
from gradscope.fixing.edits import (
    FUNCTIONS,
    computed_at,
    copying,
    decorated_function,
    moved,
    put_inside,
    rebinding,
    statement_around,
    summed,
    summed_loop,
    uncached,
    unguarded,
    with_call,
    with_flag,
    without_flag,
    without_graph,
)
from gradscope.fixing.marks import Span
from gradscope.fixing.patch import apply, read
from gradscope.fixing.pieces import Piece, Pieces, block_with, together, written
from gradscope.fixing.rehearsal import Kind

At: TypeAlias = Callable[[str], Span]
Write: TypeAlias = Callable[[At], Pieces]
Case: TypeAlias = tuple[str, Write, str]
"""A program, what is written at its places, and the program then; empty if it is refused."""

REFUSED = ""


def place(file: str, code: str, text: str) -> Span:
    """Where a text stands for the first time, or for the second where it begins with ``2:``."""
    is_second = text.startswith("2:")
    text = text.removeprefix("2:")
    start = code.index(text)
    start = code.index(text, start + 1) if is_second else start

    def spot(at: int) -> tuple[int, int]:
        head = code[:at]
        return head.count("\n") + 1, len(head[head.rfind("\n") + 1 :].encode())

    return Span(file, *spot(start), *spot(start + len(text)))


def edited(data: bytes, write: Write, folder: Path) -> bytes:
    """The content of a file with the edits made; empty if there are none."""
    program = folder / "program.py"
    program.write_bytes(data)
    file = str(program)
    code = "".join(source.parsed(file).lines)
    edits = written(*write(lambda text: place(file, code, text)))
    return apply(read(file), edits).after.data if edits else b""


def check(case: Case, folder: Path) -> None:
    code, write, expected = case
    after = edited(textwrap.dedent(code).encode(), write, folder).decode()
    assert after == textwrap.dedent(expected)
    ast.parse(after)


def of(*cases: tuple[str, Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in cases])


NOT_YET = {
    *("a sum in parentheses and a name", "a text of several lines", "several lines", "a condition"),
    *("a sum of several lines", "an empty line behind", "the only one, and a comma"),
}
"""Refused, or laid out in another way than one would by hand."""


def wrong(name: str, reason: str, case: Case) -> Any:
    """A case that goes wrong easily, and how."""
    marks = [pytest.mark.xfail(strict=True, reason=reason)] if name in NOT_YET else []
    return pytest.param(case, id=name, marks=marks)


def kinds(*each: Kind) -> frozenset[Kind]:
    return frozenset(each)


TENSOR = kinds("tensor")
STATES: Kind = ("tuple", TENSOR)


def cut(text: str, *each: Kind, method: str = "detach") -> Write:
    return lambda at: with_call(at(text), kinds(*each), method)


def added(text: str) -> Write:
    def write(at: At) -> Pieces:
        here = at(text)
        span = here.line, here.column, here.end_line, here.end_column
        return with_call(Span(here.file, *span, is_added=True), TENSOR, "detach")

    return write


@of(
    ("a name", ("y = f(h)\n", cut("h", "tensor"), "y = f(h.detach())\n")),
    ("a number", ("y = f(h)\n", cut("h", "number", method="item"), "y = f(h.item())\n")),
    ("a clone", ("y = f(h[0])\n", cut("h[0]", "tensor", method="clone"), "y = f(h[0].clone())\n")),
    ("a call", ("y = f(x).sum()\n", cut("f(x)", "tensor"), "y = f(x).detach().sum()\n")),
    ("a product", ("y = a * b + c\n", cut("a * b", "tensor"), "y = (a * b).detach() + c\n")),
    ("a sign", ("y = g(-a)\n", cut("-a", "tensor"), "y = g((-a).detach())\n")),
    (
        "a sum in parentheses",
        ("y = (a + b) * c\n", cut("a + b", "tensor"), "y = ((a + b).detach()) * c\n"),
    ),
    (
        "a sum of several lines",
        (
            "y = g(a  # one\n    + b)  # two\n",
            cut("a  # one\n    + b", "tensor"),
            "y = g((a  # one\n    + b).detach())  # two\n",
        ),
    ),
    (
        "a chain of several lines",
        (
            "y = (\n    f(x)\n    .sum()\n)\n",
            cut("f(x)\n    .sum()", "tensor"),
            "y = (\n    f(x)\n    .sum().detach()\n)\n",
        ),
    ),
    ("a condition", ("f(a if c else b)\n", cut("a if c else b", "tensor"), "f((a if c else b).detach())\n")),
    ("a tuple", ("f(h)\n", cut("h", STATES), "f(tuple(t.detach() for t in h))\n")),
    ("a tuple named as its part", ("f(t)\n", cut("t", STATES), "f(tuple(u.detach() for u in t))\n")),
    ("a tuple that a call gives", ("f(g(x))\n", cut("g(x)", STATES), "f(tuple(t.detach() for t in g(x)))\n")),
    (
        "a list of tuples",
        (
            "f(h)\n",
            cut("h", ("list", kinds(STATES))),
            "f([tuple(u.detach() for u in t) for t in h])\n",
        ),
    ),
    (
        "a dict",
        ("f(h)\n", cut("h", ("dict", TENSOR)), "f({k: t.detach() for k, t in h.items()})\n"),
    ),
    (
        "a dict that has others",
        (
            "f(h)\n",
            cut("h", ("dict", kinds("tensor", "other"))),
            'f({k: (t.detach() if hasattr(t, "detach") else t) for k, t in h.items()})\n',
        ),
    ),
    ("perhaps none", ("f(h)\n", cut("h", "tensor", "none"), "f((None if h is None else h.detach()))\n")),
    (
        "perhaps no tuple",
        (
            "f(h)\n",
            cut("h", STATES, "other"),
            "f((tuple(t.detach() for t in h) if isinstance(h, tuple) else h))\n",
        ),
    ),
    ("perhaps none of a call", ("f(g(x))\n", cut("g(x)", "tensor", "none"), REFUSED)),
    ("a tensor or a tuple", ("f(h)\n", cut("h", "tensor", STATES), REFUSED)),
    ("a tuple or a list", ("f(h)\n", cut("h", STATES, ("list", TENSOR)), REFUSED)),
    ("nothing known", ("f(h)\n", cut("h"), REFUSED)),
    ("no expression", ("f(hidden)\n", cut("hid", "tensor"), REFUSED)),
    ("a running total", ("total += loss\n", added("total"), REFUSED)),
)  # fmt: skip
def test_a_value_is_cut(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


@pytest.mark.parametrize(
    "case",
    [
        wrong(
            "a part of what a call gives",
            "next() stands twice",
            ("f(next(it)[0])\n", cut("next(it)[0]", "tensor", "none"), REFUSED),
        ),
        wrong(
            "a sum with a call",
            "g() stands twice",
            ("f(g(x) + y)\n", cut("g(x) + y", "tensor", "other"), REFUSED),
        ),
    ],
)
def test_a_value_is_not_cut_wrongly(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def flag(text: str, name: str = "retain_graph", value: str = "True") -> Write:
    return lambda at: with_flag(at(text), name, value)


def unflag(text: str, name: str = "retain_graph") -> Write:
    return lambda at: without_flag(at(text), name)


KEPT = "loss.backward(retain_graph=True)\n"


@of(
    ("no arguments", ("loss.backward()\n", flag("loss.backward()"), KEPT)),
    ("white space", ("loss.backward( )\n", flag("loss.backward( )"), KEPT)),
    ("the statement", ("y = 1, loss.backward()\n", flag("y = 1"), f"y = 1, {KEPT}")),
    (
        "another argument",
        (
            "loss.backward(inputs=[w])\n",
            flag("loss.backward(inputs=[w])"),
            "loss.backward(inputs=[w], retain_graph=True)\n",
        ),
    ),
    ("a value", ("loss.backward(retain_graph=i > 0)\n", flag("loss.backward(retain_graph=i > 0)"), KEPT)),
    (
        "by position",
        ("loss.backward(g, False)\n", flag("loss.backward(g, False)"), "loss.backward(g, True)\n"),
    ),
    (
        "by position in grad",
        (
            "import torch\ntorch.autograd.grad(loss, w, None, False)\n",
            flag("torch.autograd.grad(loss, w, None, False)"),
            "import torch\ntorch.autograd.grad(loss, w, None, True)\n",
        ),
    ),
    (
        "grad",
        (
            "import torch\ng = torch.autograd.grad(loss, w)\n",
            flag("torch.autograd.grad(loss, w)"),
            "import torch\ng = torch.autograd.grad(loss, w, retain_graph=True)\n",
        ),
    ),
    (
        "by position in autograd.backward",
        (
            "import torch\ntorch.autograd.backward(loss, None, False)\n",
            flag("torch.autograd.backward(loss, None, False)"),
            "import torch\ntorch.autograd.backward(loss, None, True)\n",
        ),
    ),
    (
        "another flag",
        (
            "import torch\ng = torch.autograd.grad(loss, w)[0]\n",
            flag("torch.autograd.grad(loss, w)", "create_graph"),
            "import torch\ng = torch.autograd.grad(loss, w, create_graph=True)[0]\n",
        ),
    ),
    (
        "several lines",
        (
            "g = torch.autograd.grad(\n    loss,  # the loss\n    w,\n)\n",
            flag("torch.autograd.grad(\n    loss,  # the loss\n    w,\n)"),
            "g = torch.autograd.grad(\n    loss,  # the loss\n    w, retain_graph=True,\n)\n",
        ),
    ),
    ("options", ("loss.backward(**options)\n", flag("loss.backward(**options)"), REFUSED)),
    ("two calls", ("y = a.backward(), b.backward()\n", flag("y = a"), REFUSED)),
    ("no call of the engine", ("y = f(x)\n", flag("y = f(x)"), REFUSED)),
)  # fmt: skip
def test_a_flag_is_passed(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


@pytest.mark.parametrize(
    "case",
    [
        wrong(
            "grad by its name",
            "takes the inputs for the flag",
            (
                "from torch.autograd import grad\ng = grad(loss, w)\n",
                flag("grad(loss, w)"),
                "from torch.autograd import grad\ng = grad(loss, w, retain_graph=True)\n",
            ),
        ),
        wrong(
            "the backward of another object",
            "takes its second argument for the flag",
            (
                "fabric.backward(loss, model)\n",
                flag("fabric.backward(loss, model)"),
                "fabric.backward(loss, model, retain_graph=True)\n",
            ),
        ),
        wrong(
            "unpacked arguments",
            "they may pass it as well",
            ("loss.backward(*given)\n", flag("loss.backward(*given)"), REFUSED),
        ),
    ],
)
def test_a_flag_is_not_passed_wrongly(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


@of(
    ("only", (KEPT, unflag(KEPT.strip()), "loss.backward()\n")),
    (
        "first",
        (
            "loss.backward(retain_graph=True, inputs=[w])\n",
            unflag("loss.backward(retain_graph=True, inputs=[w])"),
            "loss.backward(inputs=[w])\n",
        ),
    ),
    (
        "last",
        (
            "loss.backward(g, retain_graph=True)\n",
            unflag("loss.backward(g, retain_graph=True)"),
            "loss.backward(g)\n",
        ),
    ),
    (
        "between",
        (
            "grad(loss, w, create_graph=True, allow_unused=True)\n",
            unflag("grad(loss, w, create_graph=True, allow_unused=True)", "create_graph"),
            "grad(loss, w, allow_unused=True)\n",
        ),
    ),
    (
        "on a line of its own",
        (
            "g = grad(\n    loss,\n    w,\n    create_graph=True,\n)\n",
            unflag("g = grad", "create_graph"),
            "g = grad(\n    loss,\n    w,\n)\n",
        ),
    ),
    ("not there", ("loss.backward()\n", unflag("loss.backward()"), REFUSED)),
    ("by position", ("loss.backward(g, True)\n", unflag("loss.backward(g, True)"), REFUSED)),
)
def test_a_flag_is_left_out(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


@pytest.mark.parametrize(
    "case",
    [
        wrong(
            "the only one, and a comma",
            "refused: the comma is left",
            (
                "loss.backward(\n    retain_graph=True,\n)\n",
                unflag("loss.backward"),
                "loss.backward(\n)\n",
            ),
        )
    ],
)
def test_a_flag_is_left_out_in_any_layout(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def total(first: str, second: str) -> Write:
    return lambda at: summed(at(first), at(second))


BOTH = total("a.backward()", "b.backward()")


@of(
    ("two lines", ("a.backward()\nb.backward()\n", BOTH, "(a + b).backward()\n")),
    (
        "in a function, with a flag",
        (
            """
            def f(a, b):
                a.backward(retain_graph=True)  # the first
                b.backward()
            """,
            total("a.backward(retain_graph=True)", "b.backward()"),
            """
            def f(a, b):
                (a + b).backward()
            """,
        ),
    ),
    (
        "a loss made between",
        (
            "a.backward()\nb = f(x)\nb.backward()\n",
            BOTH,
            "b = f(x)\n(a + b).backward()\n",
        ),
    ),
    (
        "expressions",
        (
            "(f(x) * 2).backward()\n(u - v).backward()\n",
            total("(f(x) * 2).backward()", "(u - v).backward()"),
            "(f(x) * 2 + (u - v)).backward()\n",
        ),
    ),
    (
        "a scaler",
        (
            "scaler.scale(first).backward()\nscaler.scale(second).backward()\n",
            total("scaler.scale(first).backward()", "scaler.scale(second).backward()"),
            "scaler.scale(first + second).backward()\n",
        ),
    ),
    (
        "a function",
        (
            "self.manual_backward(one)\nself.manual_backward(two)\n",
            total("self.manual_backward(one)", "self.manual_backward(two)"),
            "self.manual_backward(one + two)\n",
        ),
    ),
    (
        "two scalers",
        (
            "s.scale(one).backward()\nt.scale(two).backward()\n",
            total("s.scale(one).backward()", "t.scale(two).backward()"),
            REFUSED,
        ),
    ),
    ("a loss bound anew", ("a.backward()\na = f(x)\nb.backward()\n", BOTH, REFUSED)),
    ("a part bound anew", ("a[i].backward()\nfor i in r: pass\nb.backward()\n", total("a[i].backward()", "b.backward()"), REFUSED)),
    ("in two blocks", ("if c:\n    a.backward()\nb.backward()\n", BOTH, REFUSED)),
    ("in one line of two", ("if c: a.backward()\nb.backward()\n", BOTH, REFUSED)),
    ("the other way round", ("b.backward()\na.backward()\n", BOTH, REFUSED)),
    ("two in one line", ("a.backward(); b.backward()\n", BOTH, REFUSED)),
    (
        "other arguments",
        (
            "a.backward(inputs=[v])\nb.backward(inputs=[w])\n",
            total("a.backward(inputs=[v])", "b.backward(inputs=[w])"),
            REFUSED,
        ),
    ),
)  # fmt: skip
def test_two_losses_are_summed(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


@pytest.mark.parametrize(
    "case",
    [
        wrong(
            "a condition",
            "`+` binds more than `if`",
            (
                "(p * q).backward()\n(u if c else v).backward()\n",
                total("(p * q).backward()", "(u if c else v).backward()"),
                "((p * q + (u if c else v))).backward()\n",
            ),
        ),
        wrong(
            "a sum of several lines",
            "SyntaxError: its lines are parsed without their parentheses",
            (
                "(u\n + v).backward()\n(a * b).backward()\n",
                total("(u\n + v).backward()", "(a * b).backward()"),
                "((u\n + v + a * b)).backward()\n",
            ),
        ),
        wrong(
            "an attribute bound anew",
            "only variables are asked for",
            (
                "s.a.backward()\ns.a = f(x)\nb.backward()\n",
                total("s.a.backward()", "b.backward()"),
                REFUSED,
            ),
        ),
        wrong(
            "a loss bound anew in the line of the call",
            "the last line is not asked for",
            ("a.backward()\na = f(x); b.backward()\n", BOTH, REFUSED),
        ),
        wrong(
            "results that are stored",
            "takes `g` out, which the program reads",
            (
                "g = grad(one, inputs=w)\nh = grad(two, inputs=w)\nprint(g)\n",
                total("grad(one, inputs=w)", "grad(two, inputs=w)"),
                REFUSED,
            ),
        ),
        wrong(
            "a flag after the loss",
            "refused: a comma is left",
            (
                "fabric.backward(one, retain_graph=True)\nfabric.backward(two)\n",
                total("fabric.backward(one, retain_graph=True)", "fabric.backward(two)"),
                "fabric.backward(one + two)\n",
            ),
        ),
        wrong(
            "a first call beside another statement",
            "the first call stays, so that its loss is there twice",
            ("y = 1; a.backward()\nb.backward()\n", BOTH, REFUSED),
        ),
        wrong(
            "a sum in parentheses and a name",
            "refused: the parentheses are taken for a part of the call",
            (
                "a.backward()\n(u - v).backward()\n",
                total("a.backward()", "(u - v).backward()"),
                "((a + u - v)).backward()\n",
            ),
        ),
        wrong(
            "names that are in others",
            "refused: takes the letter out of `fabric`",
            (
                "fabric.backward(a)\nfabric.backward(b)\n",
                total("fabric.backward(a)", "fabric.backward(b)"),
                "fabric.backward(a + b)\n",
            ),
        ),
        wrong(
            "an empty line behind",
            "the empty line goes as well",
            ("a.backward()\n\nb.backward()\n", BOTH, "\n(a + b).backward()\n"),
        ),
    ],
)
def test_two_losses_are_not_summed_wrongly(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def loop_of(text: str) -> Write:
    return lambda at: summed_loop(at(text))


EACH = loop_of("loss.backward(")


@of(
    (
        "a list",
        (
            "for loss in losses:\n    loss.backward(retain_graph=True)\nstep()\n",
            EACH,
            "sum(losses).backward()\nstep()\n",
        ),
    ),
    ("in one line", ("for loss in f(x): loss.backward()\n", EACH, "sum(f(x)).backward()\n")),
    (
        "a tuple",
        ("for loss in (a, b):\n    loss.backward()\n", EACH, "sum((a, b)).backward()\n"),
    ),
    ("more in the loop", ("for loss in losses:\n    loss.backward()\n    step()\n", EACH, REFUSED)),
    (
        "an else",
        ("for loss in losses:\n    loss.backward()\nelse:\n    step()\n", EACH, REFUSED),
    ),
    (
        "what each gives",
        (
            "for job in jobs:\n    job.result().backward()\n[job.result() for job in jobs]\n",
            loop_of("job.result().b"),
            "sum(job.result() for job in jobs).backward()\n[job.result() for job in jobs]\n",
        ),
    ),
    ("another target", ("for loss in losses:\n    x.backward()\n", loop_of("x.back"), REFUSED)),
    ("no loop", ("if losses:\n    loss.backward()\n", EACH, REFUSED)),
)
def test_the_losses_of_a_loop_are_summed(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


@pytest.mark.parametrize(
    "case",
    [
        wrong(
            "losses without parentheses",
            "the second becomes the start of the sum",
            ("for loss in a, b:\n    loss.backward()\n", EACH, "sum((a, b)).backward()\n"),
        ),
        wrong(
            "a loss that is read later",
            "NameError",
            ("for loss in losses:\n    loss.backward()\nprint(loss)\n", EACH, REFUSED),
        ),
    ],
)
def test_the_losses_of_a_loop_are_not_summed_wrongly(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def move(first: str, second: str) -> Write:
    return lambda at: moved(at(first), at(second))


STEP = move("step()", "b.backward()")


@of(
    (
        "behind the next",
        ("step()\nb.backward()\n", STEP, "b.backward()\nstep()\n"),
    ),
    (
        "behind the last line of a file",
        ("step()\nx = 1\nb.backward()", STEP, "x = 1\nb.backward()\nstep()"),
    ),
    (
        "several lines",
        (
            """
            def f():
                w.add_(  # more
                    1,
                )
                y = 2  # two
                b.backward()  # here
                return y
            """,
            move("w.add_(", "b.backward()"),
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
    ),
    (
        "behind a block",
        (
            "step()\nif c:\n    b.backward()\nelse:\n    pass\nx = 1\n",
            STEP,
            "if c:\n    b.backward()\nelse:\n    pass\nstep()\nx = 1\n",
        ),
    ),
    ("back", ("b.backward()\nstep()\n", STEP, REFUSED)),
    ("out of a block", ("if c:\n    step()\nb.backward()\n", STEP, REFUSED)),
    ("out of a line", ("if c: step()\nb.backward()\n", STEP, REFUSED)),
    ("beside another", ("step(); x = 1\nb.backward()\n", STEP, REFUSED)),
    ("behind one beside another", ("step()\nb.backward(); x = 1\n", STEP, REFUSED)),
)
def test_a_statement_is_moved(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


TEXT = '''
def f():
    w.add_(len("""
a
"""))
    b.backward()
'''


@pytest.mark.parametrize(
    "case",
    [
        wrong(
            "a text of several lines",
            "the text is indented",
            (
                TEXT,
                move("w.add_(", "b.backward()"),
                '\ndef f():\n    b.backward()\n    w.add_(len("""\na\n"""))\n',
            ),
        ),
        wrong(
            "a value that is read before",
            "NameError: `y` reads it",
            ("x = step()\ny = g(x)\nb.backward()\n", move("x = step", "b.back"), REFUSED),
        ),
        wrong(
            "behind a return",
            "never runs there",
            (
                "def f(b):\n    step()\n    return b.backward()\n",
                move("step()", "b.back"),
                REFUSED,
            ),
        ),
    ],
)
def test_a_statement_is_not_moved_wrongly(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def inside(text: str, *loops: str) -> Write:
    def write(at: At) -> Pieces:
        found = [statement_around(at(loop))[1] for loop in loops or ("for ",)]
        file, node = statement_around(at(text))
        known = (each for each in found if isinstance(each, (*source.LOOPS, *FUNCTIONS)))
        behind = [each for each in known if each in block_with(file, node)]
        return put_inside(file, [node], behind[0]) if behind else ()

    return write


@of(
    (
        "a loop",
        (
            "w = f(v)\nx = 1\nfor i in r:\n    # each\n    use(w)\n",
            inside("w = f(v)"),
            "x = 1\nfor i in r:\n    # each\n    w = f(v)\n    use(w)\n",
        ),
    ),
    (
        "a deeper one, of several lines",
        (
            """
            def f():
                w = g(
                    v,
                )
                while True:

                    use(w)
            """,
            inside("w = g(", "while"),
            """
            def f():
                while True:

                    w = g(
                        v,
                    )
                    use(w)
            """,
        ),
    ),
    (
        "the outer of two",
        (
            "w = f(v)\nfor i in r:\n    for j in r:\n        use(w)\n",
            inside("w = f(v)", "for j", "for i"),
            "for i in r:\n    w = f(v)\n    for j in r:\n        use(w)\n",
        ),
    ),
    ("read between", ("w = f(v)\nprint(w)\nfor i in r:\n    use(w)\n", inside("w = f"), REFUSED)),
    ("in one line", ("w = f(v)\nfor i in r: use(w)\n", inside("w = f"), REFUSED)),
    ("random", ("w = torch.randn(3)\nfor i in r:\n    use(w)\n", inside("w ="), REFUSED)),
    ("of nothing", ("f(v)\nfor i in r:\n    use(w)\n", inside("f(v)"), REFUSED)),
    ("behind the loop", ("for i in r:\n    use(w)\nw = f(v)\n", inside("w = f"), REFUSED)),
)
def test_a_statement_is_put_inside(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


@pytest.mark.parametrize(
    "case",
    [
        wrong(
            "what the loop runs over",
            "NameError at its head",
            ("w = f(v)\nfor i in w:\n    use(i, w)\n", inside("w = f"), REFUSED),
        ),
        wrong(
            "of what is bound anew between",
            "computes it of another value",
            ("w = f(v)\nv = 1\nfor i in r:\n    use(w)\n", inside("w = f"), REFUSED),
        ),
        wrong(
            "what fills a list",
            "it would grow with each iteration",
            (
                "k = []\nfor v in r:\n    k.append(f(v))\nfor i in r:\n    g(k)\n",
                inside("for v", "for i"),
                REFUSED,
            ),
        ),
        wrong(
            "of what the loop gives",
            "computes it of another value",
            ("w = f(v)\nfor v in r:\n    use(w)\n", inside("w = f"), REFUSED),
        ),
        wrong(
            "a text of several lines",
            "the text is indented",
            (
                'w = f("""\na""")\nfor i in r:\n    use(w)\n',
                inside("w = f"),
                'for i in r:\n    w = f("""\na""")\n    use(w)\n',
            ),
        ),
    ],
)
def test_a_statement_is_not_put_inside_wrongly(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def into(text: str, name: str) -> Write:
    return inside(text, f"def {name}")


@of(
    (
        "behind its docstring",
        (
            "w = f(v)\ndef g(x):\n    'what'\n    return x * w\nuse(g)\n",
            into("w = f(v)", "g"),
            "def g(x):\n    'what'\n    w = f(v)\n    return x * w\nuse(g)\n",
        ),
    ),
    (
        "beside another that has its own of that name",
        (
            "def h(w):\n    return w\nw = f(v)\ndef g():\n    return w\n",
            into("w = f(v)", "g"),
            "def h(w):\n    return w\ndef g():\n    w = f(v)\n    return w\n",
        ),
    ),
    ("read behind it", ("w = f(v)\ndef g():\n    return w\nuse(w)\n", into("w =", "g"), REFUSED)),
    (
        "read by another function",
        ("def h():\n    return w\nw = f(v)\ndef g():\n    return w\n", into("w =", "g"), REFUSED),
    ),
    ("a default", ("w = f(v)\ndef g(x=w):\n    return w\n", into("w = f", "g"), REFUSED)),
    ("an argument", ("w = f(v)\ndef g(w):\n    return w\n", into("w = f", "g"), REFUSED)),
    (
        "of what the function binds",
        ("w = f(v)\ndef g():\n    v = 1\n    return w, v\n", into("w = f", "g"), REFUSED),
    ),
    ("drawn", ("w = torch.rand(v)\ndef g():\n    return w\n", into("w =", "g"), REFUSED)),
)  # fmt: skip
def test_a_statement_is_put_into_a_function(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def each_time(text: str) -> Write:
    def write(at: At) -> Pieces:
        file, node = statement_around(at(text))
        return unguarded(file, node) if isinstance(node, ast.Assign) else ()

    return write


@of(
    (
        "a key that is not there",
        (
            "def f(k):\n    if k not in kept:\n        x = g(k)\n        kept[k] = h(x)\n    return kept[k]\n",
            each_time("kept[k] = h"),
            "def f(k):\n    x = g(k)\n    kept[k] = h(x)\n    return kept[k]\n",
        ),
    ),
    (
        "an attribute that is None",
        (
            "def f(self):\n    if self.w is None:\n        self.w = g()\n    return self.w\n",
            each_time("self.w = g"),
            "def f(self):\n    self.w = g()\n    return self.w\n",
        ),
    ),
    (
        "an attribute that is missing",
        (
            "def f(self):\n    if not hasattr(self, 'w'):\n        self.w = g()\n    return self.w\n",
            each_time("self.w = g"),
            "def f(self):\n    self.w = g()\n    return self.w\n",
        ),
    ),
    (
        "what is returned where it is there",
        (
            "def f(k):\n    if k in kept:\n        return kept[k]\n    kept[k] = g(k)\n    return kept[k]\n",
            each_time("kept[k] = g"),
            "def f(k):\n    kept[k] = g(k)\n    return kept[k]\n",
        ),
    ),
    ("another condition", ("if step % 9 == 0:\n    self.w = g()\n", each_time("self.w"), REFUSED)),
    ("else", ("if not a.w:\n    a.w = g()\nelse:\n    use(a)\n", each_time("a.w = g"), REFUSED)),
    ("drawn", ("if a.w is None:\n    a.w = torch.randn(3)\n", each_time("a.w = t"), REFUSED)),
    ("a variable", ("if w is None:\n    w = g()\n", each_time("w = g"), REFUSED)),
)  # fmt: skip
def test_what_is_stored_once_is_stored_each_time(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def copied(text: str, last: str, *cuts: str) -> Write:
    def write(at: At) -> Pieces:
        goal = at(last)
        parts = [with_call(at(each), TENSOR, "detach") for each in cuts]
        file, node = statement_around(at(text))
        return together(*parts, copying(file, [node], (goal.file, goal.line)))

    return write


AGAIN = """
y = net(x)
a = f(y)
a.backward()
b = g(y)
b.backward()
"""


@of(
    (
        "before its last reader",
        (
            AGAIN,
            copied("y = net(x)", "b.backward()"),
            AGAIN.replace("b = g(y)", "y = net(x)\nb = g(y)"),
        ),
    ),
    (
        "and cut before",
        (
            AGAIN,
            copied("y = net(x)", "b.backward()", "net(x)"),
            AGAIN.replace("net(x)", "net(x).detach()").replace("b = g(y)", "y = net(x)\nb = g(y)"),
        ),
    ),
    (
        "in a function",
        (
            textwrap.indent(AGAIN, "    ").replace("\n", "def f(x):\n", 1),
            copied("y = net(x)", "b.backward()"),
            textwrap.indent(AGAIN.replace("b = g", "y = net(x)\nb = g"), "    ").replace(
                "\n", "def f(x):\n", 1
            ),
        ),
    ),
    ("read only once", (AGAIN, copied("y = net(x)", "a.backward()"), REFUSED)),
    ("a cut that cannot be", (AGAIN, copied("y = net(x)", "b.backward()", "ne"), REFUSED)),
    (
        "random",
        (AGAIN.replace("net", "dropout"), copied("y = dropout(x)", "b.backward()"), REFUSED),
    ),
    (
        "its reader in one line with another",
        (AGAIN.replace("b = g", "if c: b = g"), copied("y = net(x)", "b.backward()"), AGAIN.replace("b = g", "y = net(x)\nif c: b = g")),
    ),
    (
        "its reader behind another",
        (AGAIN.replace("()\nb = g", "(); b = g"), copied("y = net(x)", "b.backward()"), REFUSED),
    ),
)  # fmt: skip
def test_a_statement_is_copied(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


@pytest.mark.parametrize(
    "case",
    [
        wrong(
            "its value bound anew",
            "loses `y = y * 2`",
            (
                AGAIN.replace("b = g", "y = y * 2\nb = g"),
                copied("y = net(x)", "b.backward()"),
                REFUSED,
            ),
        ),
        wrong(
            "what it reads bound anew",
            "computes it of another value",
            (
                AGAIN.replace("b = g", "x = 1\nb = g"),
                copied("y = net(x)", "b.backward()"),
                REFUSED,
            ),
        ),
    ],
)
def test_a_statement_is_not_copied_wrongly(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def rebound(text: str, *, is_leaf: bool = False, **own: frozenset[Kind]) -> Write:
    names = {name.replace("__", "."): each for name, each in own.items()}
    return lambda at: rebinding(at(text), names, is_leaf=is_leaf)


@of(
    (
        "in a loop",
        (
            "for x in xs:\n    y = f(x, h)\n",
            rebound("y = f", h=TENSOR),
            "for x in xs:\n    h = h.detach()\n    y = f(x, h)\n",
        ),
    ),
    (
        "two in a method",
        (
            """
            class A:
                def f(self, x):
                    "what it does"
                    global c
                    if x:
                        pass
            """,
            rebound("if x", self__h=kinds(STATES, "none"), c=TENSOR),
            """
            class A:
                def f(self, x):
                    "what it does"
                    global c
                    self.h = (None if self.h is None else tuple(t.detach() for t in self.h))
                    c = c.detach()
                    if x:
                        pass
            """,
        ),
    ),
    (
        "above a decorator",
        (
            "for x in xs:\n    @d\n    def f():\n        return h\n",
            rebound("def f", h=TENSOR),
            "for x in xs:\n    h = h.detach()\n    @d\n    def f():\n        return h\n",
        ),
    ),
    (
        "a leaf",
        (
            "for x in xs:\n\ty = f(x, h)\n",
            rebound("y = f", h=TENSOR, is_leaf=True),
            "for x in xs:\n\th = h.detach().requires_grad_()\n\ty = f(x, h)\n",
        ),
    ),
    ("leaves in a tuple", ("for x in xs:\n    f(h)\n", rebound("f(h)", h=kinds(STATES), is_leaf=True), REFUSED)),
    ("of unknown kind", ("for x in xs:\n    f(h)\n", rebound("f(h)", h=kinds("other")), REFUSED)),
    ("in one line", ("for x in xs: f(h)\n", rebound("f(h)", h=TENSOR), REFUSED)),
    (
        "a list that is an argument, and goes on to be used by who gave it",
        (
            "def run(x, hs):\n    use(x, hs)\n",
            rebound("use", hs=kinds(("list", TENSOR))),
            "def run(x, hs):\n    hs[:] = [t.detach() for t in hs]\n    use(x, hs)\n",
        ),
    ),
    (
        "a dict that a loop gives",
        (
            "for h in hs:\n    use(h)\n",
            rebound("use", h=kinds(("dict", TENSOR))),
            "for h in hs:\n    h.update({k: t.detach() for k, t in h.items()})\n    use(h)\n",
        ),
    ),
    (
        "a tuple that is an argument",
        (
            "def run(x, h):\n    use(x, h)\n",
            rebound("use", h=kinds(STATES)),
            "def run(x, h):\n    h = tuple(t.detach() for t in h)\n    use(x, h)\n",
        ),
    ),
    (
        "a tuple with a list in it that is an argument",
        (
            "def run(x, h):\n    use(x, h)\n",
            rebound("use", h=kinds(("tuple", kinds(("list", TENSOR))))),
            REFUSED,
        ),
    ),
)  # fmt: skip
def test_a_variable_is_detached_before(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


@pytest.mark.parametrize(
    "case",
    [
        wrong(
            "a global that is only read",
            "UnboundLocalError: it becomes a local variable",
            (
                "h = new()\ndef f(x):\n    return g(x, h)\n",
                rebound("return", h=TENSOR),
                REFUSED,
            ),
        )
    ],
)
def test_a_variable_is_not_detached_wrongly(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def plain(text: str) -> Write:
    def write(at: At) -> Pieces:
        function = decorated_function(at(text))
        return () if function is None else uncached(*function)

    return write


@of(
    (
        "a cache",
        (
            "@functools.lru_cache(maxsize=None)  # once\ndef f(x):\n    return g(x)\n",
            plain("return"),
            "def f(x):\n    return g(x)\n",
        ),
    ),
    (
        "one of two decorators",
        (
            "class A:\n    @staticmethod\n    @cache\n    def f(x):\n        return g(x)\n",
            plain("return"),
            "class A:\n    @staticmethod\n    def f(x):\n        return g(x)\n",
        ),
    ),
    (
        "a property",
        (
            "class A:\n    @functools.cached_property\n    def f(self):\n        return g(self)\n",
            plain("return"),
            "class A:\n    @property\n    def f(self):\n        return g(self)\n",
        ),
    ),
    ("asked for", ("@cache\ndef f(x):\n    return g(x)\nf.cache_clear()\n", plain("ret"), REFUSED)),
    ("no cache", ("@torch.no_grad()\ndef f(x):\n    return g(x)\n", plain("return"), REFUSED)),
    ("no decorator", ("def f(x):\n    return g(x)\n", plain("return"), REFUSED)),
    ("no function", ("y = g(x)\n", plain("g(x)"), REFUSED)),
)
def test_a_cache_is_taken_off(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


CACHED = """
class A:
    @cached_property
    def f(self):
        return g(self)
    def clear(self):
        del self.f
"""


@pytest.mark.parametrize(
    "case",
    [
        wrong(
            "several lines",
            "refused: only its first line is taken out",
            ("@cache(\n    f=1,\n)\ndef f():\n    return 1\n", plain("ret"), "def f():\n    return 1\n"),
        ),
        wrong(
            "a property that is deleted",
            "AttributeError: a property has no deleter",
            (CACHED, plain("return"), REFUSED),
        ),
    ],
)  # fmt: skip
def test_a_cache_is_not_taken_off_wrongly(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def no_graph(text: str) -> Write:
    def write(at: At) -> Pieces:
        here = at(text)
        return without_graph(here.file, here.line)

    return write


@of(
    (
        "a value",
        (
            "import torch\ny = f(x)  # it\n",
            no_graph("y ="),
            "import torch\nwith torch.no_grad():\n    y = f(x)  # it\n",
        ),
    ),
    (
        "a loop",
        (
            """
            import torch
            def f(xs):
                for x in xs:
                    a = g(
                        x)
                    b = h(a)
                return b
            """,
            no_graph("for x"),
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
    ),
    (
        "with tabs",
        (
            "import torch\ndef f(x):\n\treturn g(\n\t\tx)\n",
            no_graph("return"),
            "import torch\ndef f(x):\n\twith torch.no_grad():\n\t\treturn g(\n\t\t\tx)\n",
        ),
    ),
    ("a text of several lines", ('import torch\ny = f("""\na""")\n', no_graph("y ="), REFUSED)),
    (
        "a formatted text of several lines",
        ('import torch\nfor x in xs:\n    y = f(f"""\n{x}""")\n', no_graph("for x"), REFUSED),
    ),
    ("in one line", ("import torch\nif c: y = f(x)\n", no_graph("y ="), REFUSED)),
    ("beside another", ("import torch\ny = f(x); z = 1\n", no_graph("y ="), REFUSED)),
    ("a function", ("import torch\ndef f(x):\n    pass\n", no_graph("def"), REFUSED)),
    ("without torch", ("import torch as t\ny = f(x)\n", no_graph("y ="), REFUSED)),
)
def test_a_statement_builds_no_graph(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


@pytest.mark.parametrize(
    "case",
    [
        wrong(
            "a yield",
            "who takes the value runs without a graph as well",
            ("import torch\ndef f():\n    yield g(x)\n", no_graph("yield"), REFUSED),
        ),
        wrong(
            "no statement",
            "IndexError",
            ("import torch\n# nothing\ny = 1\n", no_graph("# nothing"), REFUSED),
        ),
        wrong(
            "an empty line in a loop",
            "the empty line gets white space",
            (
                "import torch\nfor x in xs:\n    f(x)\n\n    g(x)\n",
                no_graph("for x"),
                "import torch\nwith torch.no_grad():\n    for x in xs:\n        f(x)\n\n        g(x)\n",
            ),
        ),
    ],
)
def test_a_statement_builds_no_graph_in_any_layout(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def both(*writes: Write) -> Write:
    return lambda at: tuple(piece for write in writes for piece in write(at))


@of(
    (
        "two in one line",
        ("y = f(a, b)\n", both(cut("b", "tensor"), cut("a", "tensor")), "y = f(a.detach(), b.detach())\n"),
    ),
    (
        "two in lines apart",
        (
            "y = f(a)\nx = 1\nz = f(b)\n",
            both(cut("b", "tensor"), cut("a", "tensor")),
            "y = f(a.detach())\nx = 1\nz = f(b.detach())\n",
        ),
    ),
    (
        "two of one expression of several lines",
        (
            "y = f(a,\n      b)\n",
            both(cut("a", "tensor"), cut("b", "tensor")),
            "y = f(a.detach(),\n      b.detach())\n",
        ),
    ),
    ("the same twice", ("f(a)\n", both(cut("a", "tensor"), cut("a", "tensor")), "f(a.detach())\n")),
    (
        "above and in a line",
        (
            "for x in xs:\n    f(h)\n",
            both(rebound("f(h)", h=TENSOR), cut("h", "tensor", method="clone")),
            "for x in xs:\n    h = h.detach()\n    f(h.clone())\n",
        ),
    ),
    ("one within another", ("f(g(a))\n", both(cut("g(a)", "tensor"), cut("a", "tensor")), REFUSED)),
    ("a change of what is gone", ("step(h)\nb.backward()\n", both(move("step(h)", "b.back"), cut("h", "tensor")), REFUSED)),
)  # fmt: skip
def test_pieces_are_put_together(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def test_nothing_is_written_where_the_file_would_not_parse(tmp_path: Path) -> None:
    def write(at: At) -> Pieces:
        here = at("x")
        return (Piece(here.file, (here.line, 0), (here.line, 0), "    "),)

    assert edited(b"y = 1\nx = 2\n", write, tmp_path) == b""
    assert edited(b"y = 1\nx = 2\n", lambda at: (), tmp_path) == b""


def test_the_pieces_of_two_files_are_one_change(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.py", "b.py")]
    for file in files:
        file.write_text("f(h)\n")
    places = [place(str(file), "f(h)\n", "h") for file in files]
    edits = written(*(p for each in places for p in with_call(each, TENSOR, "detach")))
    assert [(e.file, e.line, e.replacement, e.end_line) for e in edits] == [
        (str(file), 1, "f(h.detach())", 1) for file in files
    ]


@pytest.mark.parametrize(
    ("data", "write", "after"),
    [
        ("été = f('é', h)\n".encode(), cut("h", "tensor"), "été = f('é', h.detach())\n".encode()),
        ("f('é', a); f('ß', b)\n".encode(), both(cut("a", "tensor"), cut("b", "tensor")), "f('é', a.detach()); f('ß', b.detach())\n".encode()),
        (b"\xef\xbb\xbff(h)\n", cut("h", "tensor"), b"\xef\xbb\xbff(h.detach())\n"),
        ("# coding: latin-1\nf('é', h)\n".encode("latin-1"), cut("h", "tensor"), "# coding: latin-1\nf('é', h.detach())\n".encode("latin-1")),
        (b"x = 1\r\nstep()\r\nb.backward()\r\n", STEP, b"x = 1\r\nb.backward()\r\nstep()\r\n"),
        (b"y = f(a\r\n  + b)\r\n", cut("a\n  + b", "tensor"), b"y = f((a\r\n  + b).detach())\r\n"),
        (b"import torch\r\nfor x in y:\r\n  f(x)", no_graph("for x"), b"import torch\r\nwith torch.no_grad():\r\n    for x in y:\r\n      f(x)"),
        (b"x = 1\nstep()\nb.backward()", total("step()", "b.backward()"), b""),
        (b"f(h)", cut("h", "tensor"), b"f(h.detach())"),
    ],
    ids=["not ASCII", "two places", "BOM", "latin-1", "CRLF", "CRLF in an expression", "CRLF and no end", "refused", "no end"],
)  # fmt: skip
def test_a_file_keeps_its_encoding_and_its_ends(
    data: bytes, write: Write, after: bytes, tmp_path: Path
) -> None:
    assert edited(data, write, tmp_path) == after


def computed(text: str, read: str) -> Write:
    def write(at: At) -> Pieces:
        file, node = statement_around(at(text))
        assert isinstance(node, ast.Assign)
        return computed_at(file, node, at(read))

    return write


@of(
    (
        "an attribute",
        (
            "class A:\n    def f(self):\n        self.p = self.D(self.x)\n\n"
            "    def g(self):\n        return bce(self.p, 1)\n",
            computed("self.D(self.x)", "2:self.p"),
            "class A:\n    def f(self):\n        self.p = self.D(self.x)\n\n"
            "    def g(self):\n        return bce(self.D(self.x), 1)\n",
        ),
    ),
    (
        "an argument of another function",
        (
            "def f(D, x):\n    y = D(x)\n    return y\n\nD, x = net, 1\nold = f(D, x)\ng(old)\n",
            computed("D(x)", "2:old"),
            "def f(D, x):\n    y = D(x)\n    return y\n\nD, x = net, 1\nold = f(D, x)\ng(D(x))\n",
        ),
    ),
    (
        "of what the function binds",
        ("w = f(v)\ndef g():\n    v = 1\n    return w, v\n", computed("f(v)", "2:w"), REFUSED),
    ),
    ("drawn", ("w = torch.rand(v)\ndef g():\n    w\n", computed("torch", "2:w"), REFUSED)),
    (
        "a name that is not there",
        (
            "def f(D, x):\n    y = D(x)\n    return y\n\ndef g(p):\n    return p\n",
            computed("D(x)", "2:p"),
            REFUSED,
        ),
    ),
)
def test_a_value_is_computed_where_it_is_read(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)

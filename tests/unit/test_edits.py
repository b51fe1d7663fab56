"""Each edit that fixes are made of, by the program before and after it: what is not shown is not changed."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from edited import Write, after

from gradscope.fixing import calls, in_place, moves, recompute, special, values
from gradscope.fixing.edits import joined
from gradscope.model import Site

Case = tuple[str, Write, str]
METHODS = frozenset({"relu", "add", "mul", "masked_fill"})
RETAIN = "retain_graph"


def cases(**named: Case) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("code", "write", "expected"),
        [
            pytest.param(textwrap.dedent(code), write, textwrap.dedent(expected), id=name)
            for name, (code, write, expected) in named.items()
        ],
    )


@cases(
    in_a_call=(
        "d = bce(D(fake), y)\n",
        lambda at: values.detach_reads(at("d"), "fake"),
        "d = bce(D(fake.detach()), y)\n",
    ),
    every_read=(
        "d = f(h) + g(h[0])\n",
        lambda at: values.detach_reads(at("d"), "h"),
        "d = f(h.detach()) + g(h.detach()[0])\n",
    ),
    not_its_shape=(
        "d = f(h, h.shape, h.size(0), len(h), h is None, isinstance(h, T))\n",
        lambda at: values.detach_reads(at("d"), "h"),
        "d = f(h.detach(), h.shape, h.size(0), len(h), h is None, isinstance(h, T))\n",
    ),
    not_twice=("d = f(h.detach())\n", lambda at: values.detach_reads(at("d"), "h"), ""),
    not_another_of_that_name=(
        "d = [h for h in hs], (lambda h: h), f(h)\n",
        lambda at: values.detach_reads(at("d"), "h"),
        "d = [h for h in hs], (lambda h: h), f(h.detach())\n",
    ),
    not_a_keyword=(
        "d = f(h=h)\n",
        lambda at: values.detach_reads(at("d"), "h"),
        "d = f(h=h.detach())\n",
    ),
    the_head_alone=(
        "if f(h) > 0:\n    g(h)\n",
        lambda at: values.detach_reads(at("if"), "h"),
        "if f(h.detach()) > 0:\n    g(h)\n",
    ),
    an_element=(
        "d = f( s [ i - 1 ] )\n",
        lambda at: values.detach_reads(at("d"), "s[i-1]"),
        "d = f( s [ i - 1 ].detach() )\n",
    ),
    none_at_first=(
        "def f(x, h=None):\n    return rnn(x, h)\n",
        lambda at: values.detach_reads(at("return"), "h"),
        "def f(x, h=None):\n    return rnn(x, (h if h is None else h.detach()))\n",
    ),
    none_at_first_and_asked=(
        "def f(x, h=None):\n    if h is None:\n        h = new(x)\n    return rnn(x, h)\n",
        lambda at: values.detach_reads(at("return"), "h"),
        "def f(x, h=None):\n    if h is None:\n        h = new(x)\n    return rnn(x, h.detach())\n",
    ),
    a_number_at_first=(
        "import torch\nloss = 0.0\nfor x in xs:\n    y = x + loss\n",
        lambda at: values.detach_reads(at("y"), "loss"),
        "import torch\nloss = 0.0\nfor x in xs:\n"
        "    y = x + (loss if not torch.is_tensor(loss) else loss.detach())\n",
    ),
    in_a_format=("print(f'{h}')\n", lambda at: values.detach_reads(at("print"), "q"), ""),
    no_such_place=("x = 1\n", lambda at: values.detach_reads(Site(at("x").file, 9), "x"), ""),
    no_file=("x = 1\n", lambda at: values.detach_reads(Site("gone.py", 1), "x"), ""),
)
def test_reads_are_detached(code: str, write: Write, expected: str, tmp_path: Path) -> None:
    assert after(code, write, tmp_path) == expected


@cases(
    a_sum=(
        "self.m = 0.9 * a + b\n",
        lambda at: moves.detach_stored(at("self")),
        "self.m = (0.9 * a + b).detach()\n",
    ),
    in_its_branch=(
        "loss = f(x) if use else 0.0\n",
        lambda at: moves.detach_stored(at("loss")),
        "loss = f(x).detach() if use else 0.0\n",
    ),
    in_a_branch_of_a_sum=(
        "loss = 2 + (f(x) if use else 0.0)\n",
        lambda at: moves.detach_stored(at("loss")),
        "loss = 2 + (f(x).detach() if use else 0.0)\n",
    ),
    an_awaited=(
        "async def f():\n    h = await g()\n",
        lambda at: moves.detach_stored(at("h")),
        "async def f():\n    h = (await g()).detach()\n",
    ),
    in_a_container=(
        "seen.append(h)\n",
        lambda at: moves.detach_stored(at("seen")),
        "seen.append(h.detach())\n",
    ),
    a_part_of_a_tuple=(
        "seen.append((s, a, 0.1))\n",
        lambda at: moves.detach_stored(at("seen"), "a"),
        "seen.append((s, a.detach(), 0.1))\n",
    ),
    an_unknown_part=("seen.append((s, a))\n", lambda at: moves.detach_stored(at("seen")), ""),
    by_a_hook=(
        "net.register_forward_hook(lambda m, i, o: seen.append(o))\n",
        lambda at: moves.detach_stored(at("seen.append(o)")),
        "net.register_forward_hook(lambda m, i, o: seen.append(o.detach()))\n",
    ),
    a_returned=(
        "def f():\n    return g(x) * 2\n",
        lambda at: moves.detach_stored(at("return")),
        "def f():\n    return (g(x) * 2).detach()\n",
    ),
    one_of_two=(
        "a, b = f(x), g(x)\n",
        lambda at: moves.detach_stored(at("a"), "b"),
        "a, b = f(x), g(x).detach()\n",
    ),
    one_of_two_from_a_call=(
        "a, s.b = f(\n    x\n)\ng(a)\n",
        lambda at: moves.detach_stored(at("a"), "s.b"),
        "a, s.b = f(\n    x\n)\ns.b = s.b.detach()\ng(a)\n",
    ),
    an_element_of_a_tuple=(
        "s.h = f(x)\n",
        lambda at: moves.detach_stored(at("s.h"), "net.h[0]"),
        "s.h = tuple(each.detach() for each in f(x))\n",
    ),
    an_element_that_is_stored=(
        "h[0] = f(x)\n",
        lambda at: moves.detach_stored(at("h[0]"), "h[0]"),
        "h[0] = f(x).detach()\n",
    ),
    an_element_of_one_of_several=(
        "a, self.h = f(x)\n",
        lambda at: moves.detach_stored(at("a"), "net.h[0]"),
        "a, self.h = f(x)\nself.h = tuple(t.detach() for t in self.h)\n",
    ),
    a_value_of_a_dict=(
        "c = {'a': f(x), 'b': g(x)}\n",
        lambda at: moves.detach_stored(at("c"), "c['b']"),
        "c = {'a': f(x), 'b': g(x).detach()}\n",
    ),
    a_whole_dict=("c = {'a': f(x)}\n", lambda at: moves.detach_stored(at("c"), "c"), ""),
    a_state_that_is_carried=(
        "h = None\nfor x in xs:\n    y, s.h = f(x, s.h), h\n",
        lambda at: values.detach_carried(at("y,"), "net.h"),
        "h = None\nfor x in xs:\n    y, s.h = f(x, s.h.detach()), h\n",
    ),
    a_state_that_is_not_carried=("h = f(x)\n", lambda at: values.detach_carried(at("h"), "h"), ""),
    a_tuple_beside_another=(
        "a, s = f(x); g(a)\n",
        lambda at: moves.detach_stored(at("a"), "s", elements=True),
        "a, s = f(x); s = tuple(t.detach() for t in s); g(a)\n",
    ),
    all_of_a_comprehension=(
        "hs = [f(h) for h in hs]\n",
        lambda at: moves.detach_stored(at("hs")),
        "hs = [f(h).detach() for h in hs]\n",
    ),
    a_tuple_of_states=(
        "s = lstm(x)[1]\n",
        lambda at: moves.detach_stored(at("s"), elements=True),
        "s = tuple(each.detach() for each in lstm(x)[1])\n",
    ),
    a_list_that_grows=(
        "self.k = self.k + [h]\n",
        lambda at: moves.detach_stored(at("self.k")),
        "self.k = self.k + [h.detach()]\n",
    ),
    to_a_leaf=(
        "w = w - 0.1 * g\n",
        lambda at: values.detach_to_leaf(at("w")),
        "w = (w - 0.1 * g).detach().requires_grad_()\n",
    ),
    as_a_number=(
        "log[i] = loss\n",
        lambda at: values.item_stored(at("log")),
        "log[i] = loss.item()\n",
    ),
    as_text=(
        "bad.append(e)\n",
        lambda at: values.stored_as(at("bad"), "str"),
        "bad.append(str(e))\n",
    ),
    not_what_may_be_none=("h = a or b\n", lambda at: moves.detach_stored(at("h")), ""),
)
def test_what_is_stored_is_changed(code: str, write: Write, expected: str, tmp_path: Path) -> None:
    assert after(code, write, tmp_path) == expected


@cases(
    plus=(
        "total += loss\n",
        lambda at: values.item_added(at("total"), "total"),
        "total += loss.item()\n",
    ),
    sum_=(
        "total = total + loss\n",
        lambda at: values.item_added(at("total"), "total"),
        "total = total + loss.item()\n",
    ),
    turned=(
        "total = loss+total\n",
        lambda at: values.item_added(at("total"), "total"),
        "total = loss.item()+total\n",
    ),
    of_three=(
        "t = t + a - b\n",
        lambda at: values.item_added(at("t"), "t"),
        "t = t + a.item() - b.item()\n",
    ),
    weighted=(
        "t['a'] += 0.1 * loss\n",
        lambda at: values.item_added(at("t"), "t['a']"),
        "t['a'] += 0.1 * loss.item()\n",
    ),
    in_its_branch=(
        "t += f(x) if use else 0.0\n",
        lambda at: values.item_added(at("t"), "t"),
        "t += f(x).item() if use else 0.0\n",
    ),
    a_number_already=("t += float(loss)\n", lambda at: values.item_added(at("t"), "t"), ""),
    detached=(
        "t = t + loss\n",
        lambda at: values.detach_added(at("t"), "t"),
        "t = t + loss.detach()\n",
    ),
    no_total=("t = f(x)\n", lambda at: values.item_added(at("t"), "t"), ""),
)
def test_what_is_added_to_a_total_is_changed(
    code: str, write: Write, expected: str, tmp_path: Path
) -> None:
    assert after(code, write, tmp_path) == expected


@cases(
    two=(
        "a.backward()\nb.backward()  # two\n",
        lambda at: calls.sum_losses(at("a.backward()"), at("b.backward()")),
        "(a + b).backward()\n",
    ),
    on_one_line=(
        "if x: a.backward(); b.backward(); step()\n",
        lambda at: calls.sum_losses(at("a.backward()"), at("b.backward()")),
        "if x: (a + b).backward(); step()\n",
    ),
    kept_by_the_first=(
        "a.backward(retain_graph=True)\n# the second\nb.backward()\n",
        lambda at: calls.sum_losses(at("a"), at("b.backward()")),
        "(a + b).backward()\n# the second\n",
    ),
    one_made_in_between=(
        "a = f(x)\na.backward(retain_graph=True)\nb = g(x)\nb.backward()\n",
        lambda at: calls.sum_losses(at("a.backward(retain_graph=True)"), at("b.backward()")),
        "a = f(x)\nb = g(x)\n(a + b).backward()\n",
    ),
    stepped_in_between=(
        "a.backward()\nopt.step()\nb = g(x)\nb.backward()\n",
        lambda at: calls.sum_losses(at("a.backward()"), at("b.backward()")),
        "",
    ),
    scaled=(
        "s.scale(a).backward()\ns.scale(b).backward()\n",
        lambda at: calls.sum_losses(at("s.scale(a).backward()"), at("s.scale(b).backward()")),
        "s.scale(a + b).backward()\n",
    ),
    by_a_library=(
        "fabric.backward(a)\nfabric.backward(f(b))\n",
        lambda at: calls.sum_losses(at("fabric.backward(a)"), at("fabric.backward(f(b))")),
        "fabric.backward(a + f(b))\n",
    ),
    in_a_condition=(
        "a.backward()\nif c:\n    b.backward()\n",
        lambda at: calls.sum_losses(at("a.backward()"), at("b.backward()")),
        "",
    ),
    with_a_gradient=(
        "a.backward(g)\nb.backward(g)\n",
        lambda at: calls.sum_losses(at("a"), at("b.backward(g)")),
        "",
    ),
    one_after_the_other=(
        "for loss in losses:\n    loss.backward()\n",
        lambda at: calls.sum_of_loop(at("loss.backward()"), "losses"),
        "sum(losses).backward()\n",
    ),
    one_after_the_other_and_more=(
        "for loss in losses:  # all\n    loss.backward()\n    show(loss)\n",
        lambda at: calls.sum_of_loop(at("loss.backward()"), "losses"),
        "for loss in [sum(losses)]:  # all\n    loss.backward()\n    show(loss)\n",
    ),
    another_root=(
        "total.backward()\n",
        lambda at: calls.backward_of(at("total.backward()"), "a + b"),
        "(a + b).backward()\n",
    ),
)
def test_losses_are_put_together(code: str, write: Write, expected: str, tmp_path: Path) -> None:
    assert after(code, write, tmp_path) == expected


@cases(
    none=(
        "loss.backward()\n",
        lambda at: calls.with_flag(at("loss"), RETAIN),
        "loss.backward(retain_graph=True)\n",
    ),
    named=(
        "loss.backward(inputs=[w])\n",
        lambda at: calls.with_flag(at("loss"), RETAIN),
        "loss.backward(inputs=[w], retain_graph=True)\n",
    ),
    by_lines=(
        "g = grad(\n    y,  # of\n    x,\n)\n",
        lambda at: calls.with_flag(at("g"), "create_graph"),
        "g = grad(\n    y,  # of\n    x,\n    create_graph=True,\n)\n",
    ),
    by_lines_without_a_comma=(
        "g = grad(\n    y,\n    x\n)\n",
        lambda at: calls.with_flag(at("g"), "create_graph"),
        "g = grad(\n    y,\n    x,\n    create_graph=True\n)\n",
    ),
    false=(
        "loss.backward(retain_graph=False)\n",
        lambda at: calls.with_flag(at("loss"), RETAIN),
        "loss.backward(retain_graph=True)\n",
    ),
    by_position=(
        "grad(y, x, None, False)\n",
        lambda at: calls.with_flag(at("grad"), RETAIN),
        "grad(y, x, None, True)\n",
    ),
    computed=(
        "loss.backward(retain_graph=i < 3)\n",
        lambda at: calls.with_flag(at("loss"), RETAIN),
        "loss.backward(retain_graph=True)\n",
    ),
    unknown=("loss.backward(**options)\n", lambda at: calls.with_flag(at("loss"), RETAIN), ""),
    one_of_two_calls=(
        "f(a.backward(), b.backward())\n",
        lambda at: calls.with_flag(at("b.backward()"), RETAIN),
        "f(a.backward(), b.backward(retain_graph=True))\n",
    ),
    out=(
        "loss.backward(retain_graph=True)\n",
        lambda at: calls.without_flag(at("loss"), RETAIN),
        "loss.backward()\n",
    ),
    out_first=(
        "loss.backward(retain_graph=True, inputs=w)\n",
        lambda at: calls.without_flag(at("loss"), RETAIN),
        "loss.backward(inputs=w)\n",
    ),
    out_last=(
        "loss.backward(inputs=w, retain_graph=True)\n",
        lambda at: calls.without_flag(at("loss"), RETAIN),
        "loss.backward(inputs=w)\n",
    ),
    out_of_lines=(
        "loss.backward(\n    retain_graph=True,\n    inputs=w,  # these\n)\n",
        lambda at: calls.without_flag(at("loss"), RETAIN),
        "loss.backward(\n    inputs=w,  # these\n)\n",
    ),
    out_of_the_only_line=(
        "loss.backward(\n    retain_graph=True,\n)\n",
        lambda at: calls.without_flag(at("loss"), RETAIN),
        "loss.backward()\n",
    ),
    out_by_position=(
        "grad(y, x, None, True)\n",
        lambda at: calls.without_flag(at("grad"), RETAIN),
        "grad(y, x, None, False)\n",
    ),
    out_computed=(
        "loss.backward(retain_graph=i < 3)\n",
        lambda at: calls.without_flag(at("loss"), RETAIN),
        "",
    ),
    other=(
        "h = checkpoint(f, h, use_reentrant=True)\n",
        lambda at: calls.with_keyword(at("h"), "use_reentrant", "False"),
        "h = checkpoint(f, h, use_reentrant=False)\n",
    ),
)
def test_flags_are_passed_and_left_out(
    code: str, write: Write, expected: str, tmp_path: Path
) -> None:
    assert after(code, write, tmp_path) == expected


@cases(
    one=(
        "import torch\n# of the teacher\nt = f(x)  # held\n",
        lambda at: moves.no_grad(at("t = f")),
        "import torch\n# of the teacher\nwith torch.no_grad():\n    t = f(x)  # held\n",
    ),
    several=(
        "import torch as T\nfor x in xs:\n\ta = f(x)\n\n\t# then\n\tb = g(\n\t\ta\n\t)\n\tc = 1\n",
        lambda at: moves.no_grad(at("a = f"), at("b = g")),
        "import torch as T\nfor x in xs:\n\twith T.no_grad():\n\t\ta = f(x)\n\n\t\t# then\n\t\tb = g(\n\t\t\ta\n\t\t)\n\tc = 1\n",
    ),
    of_a_module=(
        "import torch\na = f()\n\nb = 2\nc = 3\n",
        lambda at: moves.no_grad(at("a = f"), at("b = 2")),
        "import torch\nwith torch.no_grad():\n    a = f()\n\n    b = 2\nc = 3\n",
    ),
    beside_others=(
        "import torch\na = 1; b = f(x); c = 3  # all\n",
        lambda at: moves.no_grad(at("b = f")),
        "import torch\na = 1\nwith torch.no_grad():\n    b = f(x)\nc = 3  # all\n",
    ),
    behind_a_colon=(
        "import torch\nif x: b = f(x)  # so\n",
        lambda at: moves.no_grad(at("b = f")),
        "import torch\nif x:  # so\n    with torch.no_grad():\n        b = f(x)\n",
    ),
    a_function=(
        "import torch\n@other\ndef f():\n    pass\n",
        lambda at: moves.no_grad(at("def")),
        "import torch\n@other\n@torch.no_grad()\ndef f():\n    pass\n",
    ),
    not_imported=(
        "from torch import nn\nt = f(x)\n",
        lambda at: moves.no_grad(at("t = f")),
        "import torch\nfrom torch import nn\nwith torch.no_grad():\n    t = f(x)\n",
    ),
    an_await=(
        "import torch\nasync def f():\n    t = await g()\n",
        lambda at: moves.no_grad(at("t = a")),
        "",
    ),
    of_two_blocks=(
        "import torch\nif x:\n    a = 1\nb = 2\n",
        lambda at: moves.no_grad(at("a = 1"), at("b = 2")),
        "",
    ),
)
def test_statements_go_under_no_grad(
    code: str, write: Write, expected: str, tmp_path: Path
) -> None:
    assert after(code, write, tmp_path) == expected


@cases(
    clone_read=(
        "l = q @ queue  # x\n",
        lambda at: values.clone_reads(at("l"), "queue"),
        "l = q @ queue.clone()  # x\n",
    ),
    plus=(
        "x = f()\nx += y  # in place\n",
        lambda at: in_place.out_of_place(at("x +="), METHODS),
        "x = f()\nx = x + y  # in place\n",
    ),
    plus_a_sum=(
        "x = f()\nx *= a + b\n",
        lambda at: in_place.out_of_place(at("x *="), METHODS),
        "x = f()\nx = x * (a + b)\n",
    ),
    method=(
        "x = f()\nx.masked_fill_(\n    m, 0\n)\n",
        lambda at: in_place.out_of_place(at("x.mas"), METHODS),
        "x = f()\nx = x.masked_fill(\n    m, 0\n)\n",
    ),
    chain=(
        "x = f()\nx.mul_(2).add_(1)\n",
        lambda at: in_place.out_of_place(at("x.mul_"), METHODS),
        "x = f()\nx = x.mul(2).add(1)\n",
    ),
    stored=(
        "x = f()\nx = x.relu_()\n",
        lambda at: in_place.out_of_place(at("2:x = "), METHODS),
        "x = f()\nx = x.relu()\n",
    ),
    stored_elsewhere=(
        "x = f()\ny = x.relu_()\n",
        lambda at: in_place.out_of_place(at("y"), METHODS),
        "x = f()\ny = x = x.relu()\n",
    ),
    no_such_method=(
        "x = f()\nx.odd_()\n",
        lambda at: in_place.out_of_place(at("x.odd"), METHODS),
        "",
    ),
    known_elsewhere=(
        "x = f()\ns.x = x\nx += 1\n",
        lambda at: in_place.out_of_place(at("x +="), METHODS),
        "",
    ),
    an_argument=(
        "def f(x):\n    x += 1\n",
        lambda at: in_place.out_of_place(at("x +="), METHODS),
        "",
    ),
)
def test_operations_are_made_out_of_place(
    code: str, write: Write, expected: str, tmp_path: Path
) -> None:
    assert after(code, write, tmp_path) == expected


@cases(
    before=(
        "b.backward()\n\n# the step\nopt.step()  # of D\nc.backward()\n",
        lambda at: moves.move_before(at("c.backward()"), at("opt.step()")),
        "b.backward()\nc.backward()\n\n# the step\nopt.step()  # of D\n",
    ),
    after_=(
        "for x in xs:\n    # the step\n    opt.step()  # of D\n    if x:\n        c.backward()\n",
        lambda at: moves.move_after(at("opt.step()"), at("if x")),
        "for x in xs:\n    if x:\n        c.backward()\n    # the step\n    opt.step()  # of D\n",
    ),
    out_of_a_line=(
        "a(); b(); c()\n",
        lambda at: moves.move_after(at("a()"), at("c()")),
        "b(); c(); a()\n",
    ),
    into_a_block=(
        "if x:\n    a()\nb()\n",
        lambda at: moves.move_before(at("b()"), at("a()")),
        "if x:\n    b()\n    a()\n",
    ),
    the_only_one=(
        "if x:\n    a()\nb()\n",
        lambda at: moves.move_after(at("a()"), at("b()")),
        "if x:\n    pass\nb()\na()\n",
    ),
    what_is_read=("a = f()\nb = a\n", lambda at: moves.move_after(at("a = f"), at("b = a")), ""),
    what_is_stored=("b = a\na = f()\n", lambda at: moves.move_before(at("a = f"), at("b = a")), ""),
    below_the_global=(
        "def f():\n    show()\n    global h\n    tell()\n    h = g()\n",
        lambda at: moves.move_before(at("h = g"), at("show")),
        "def f():\n    show()\n    global h\n    h = g()\n    tell()\n",
    ),
    another_function=(
        "def f():\n    a()\nb()\n",
        lambda at: moves.move_before(at("b()"), at("a()")),
        "",
    ),
)
def test_statements_are_moved(code: str, write: Write, expected: str, tmp_path: Path) -> None:
    assert after(code, write, tmp_path) == expected


@cases(
    into_a_loop=(
        "# of all\nz = f(a)\nfor x in xs:\n    # each\n    g(z)\n",
        lambda at: recompute.recomputed(at("g(z)"), ["z"]),
        "for x in xs:\n    # of all\n    z = f(a)\n    # each\n    g(z)\n",
    ),
    two_of_a_tuple=(
        "def h():\n    a, b = f()\n    while True:\n        g(a, b)\n",
        lambda at: recompute.recomputed(at("g(a"), ["a", "b"]),
        "def h():\n    while True:\n        a, b = f()\n        g(a, b)\n",
    ),
    in_order=(
        "a = f(); b = g(a)\nfor x in xs: h(b)\n",
        lambda at: recompute.recomputed(at("for"), ["b", "a"]),
        "for x in xs: a = f(); b = g(a); h(b)\n",
    ),
    used_before_as_well=(
        "z = f(a)\nshow(z)\nfor x in xs:\n    g(z)\n",
        lambda at: recompute.recomputed(at("g(z)"), ["z"]),
        "z = f(a)\nshow(z)\nfor x in xs:\n    z = f(a)\n    g(z)\n",
    ),
    into_a_function=(
        "z = f(a)\ndef closure():\n    'Doc.'\n    global y\n    y = g(z)\n",
        lambda at: recompute.recomputed(at("y = g"), ["z"]),
        "def closure():\n    'Doc.'\n    global y\n    z = f(a)\n    y = g(z)\n",
    ),
    into_a_nested_function=(
        "def train():\n    z = f(a)\n    def closure():\n        return g(z)\n    opt.step(closure)\n",
        lambda at: recompute.recomputed(at("return"), ["z"]),
        "def train():\n    def closure():\n        z = f(a)\n        return g(z)\n    opt.step(closure)\n",
    ),
    stored_twice=(
        "z = f(a)\nz = f(b)\nfor x in xs:\n    g(z)\n",
        lambda at: recompute.recomputed(at("g(z)"), ["z"]),
        "",
    ),
    a_first_value=(
        "z = None\nfor x in xs:\n    g(z)\n",
        lambda at: recompute.recomputed(at("g(z)"), ["z"]),
        "",
    ),
    nowhere=("z = f(a)\ng(z)\n", lambda at: recompute.recomputed(at("g(z)"), ["z"]), ""),
    into_a_method=(
        "class A:\n    def __init__(self):\n        self.w = 1\n        self.m = f(self.w)\n\n    def forward(self, x):\n        return x * self.m\n",
        lambda at: recompute.recomputed_in(at("return"), at("self.m")),
        "class A:\n    def __init__(self):\n        self.w = 1\n\n    def forward(self, x):\n        self.m = f(self.w)\n        return x * self.m\n",
    ),
    of_an_argument=(
        "class A:\n    def __init__(self, n):\n        self.m = f(n)\n\n    def forward(self, x):\n        return x * self.m\n",
        lambda at: recompute.recomputed_in(at("return"), at("self.m")),
        "",
    ),
    a_second_loss=(
        "for _ in r:\n    p = D(G(z))\n    a, b = f(p), g(p)\n    a.backward()\n    oD.step()\n    b.backward()\n",
        lambda at: recompute.forward_again(at("b.backward()"), ["p"]),
        "for _ in r:\n    p = D(G(z))\n    a, b = f(p), g(p)\n    a.backward()\n    oD.step()\n    p = D(G(z))\n    b = g(p)\n    b.backward()\n",
    ),
    a_second_loss_of_its_own=(
        "p = D(G(z))\na = f(p)\nb = g(p)\na.backward()\nb.backward()\n",
        lambda at: recompute.forward_again(at("b.backward()"), ["p"]),
        "p = D(G(z))\na = f(p)\na.backward()\np = D(G(z))\nb = g(p)\nb.backward()\n",
    ),
    nothing_stale=(
        "b = g(p)\nb.backward()\n",
        lambda at: recompute.forward_again(at("b.backward()"), ["q"]),
        "",
    ),
)
def test_what_was_computed_once_is_computed_again(
    code: str, write: Write, expected: str, tmp_path: Path
) -> None:
    assert after(code, write, tmp_path) == expected


@cases(
    if_none=(
        "def f(self):\n    if self.a is None:  # once\n        k = g()\n        self.a = h(k)\n    return self.a\n",
        lambda at: recompute.rebuilt(at("self.a = ")),
        "def f(self):\n    k = g()\n    self.a = h(k)\n    return self.a\n",
    ),
    if_not_in=(
        "if k not in memo: memo[k] = f(k)\n",
        lambda at: recompute.rebuilt(at("memo[k]")),
        "memo[k] = f(k)\n",
    ),
    early_return=(
        "def f(k):\n    if k in memo:\n        return memo[k]\n    memo[k] = g(k)\n    return memo[k]\n",
        lambda at: recompute.rebuilt(at("memo[k] = ")),
        "def f(k):\n    memo[k] = g(k)\n    return memo[k]\n",
    ),
    another_test=(
        "if training:\n    self.a = f()\n",
        lambda at: recompute.rebuilt(at("self.a")),
        "",
    ),
    decorator=(
        "# all\n@lru_cache(None)\n# of w\ndef f():\n    pass\n",
        lambda at: recompute.uncached(at("@")),
        "# all\n# of w\ndef f():\n    pass\n",
    ),
    one_of_two=(
        "@a\n@functools.cache\n@b\ndef f():\n    pass\n",
        lambda at: recompute.uncached(at("def f")),
        "@a\n@b\ndef f():\n    pass\n",
    ),
    a_property=(
        "class A:\n    @cached_property\n    def f(self):\n        pass\n",
        lambda at: recompute.uncached(at("def f")),
        "class A:\n    @property\n    def f(self):\n        pass\n",
    ),
    a_cache_that_is_cleared=(
        "@cache\ndef f():\n    pass\nf.cache_clear()\n",
        lambda at: recompute.uncached(at("@")),
        "",
    ),
)
def test_caches_are_rebuilt(code: str, write: Write, expected: str, tmp_path: Path) -> None:
    assert after(code, write, tmp_path) == expected


FUNCTION = """\
class F(Function):
    @staticmethod
    def forward(ctx, x):
        out = f(x)
{}
        return out
    @staticmethod
    def backward(ctx, g):
{}
"""


def function(forward: str, backward: str) -> str:
    parts = (textwrap.indent(part, "        ") for part in (forward, backward))
    return FUNCTION.format(*parts)


@cases(
    the_first=(
        function("ctx.out = out  # kept", "'''Doc.'''\nreturn g * ctx.out * (1 - ctx.out)"),
        lambda at: special.save_for_backward(at("ctx.out")),
        function(
            "ctx.save_for_backward(out)  # kept",
            "'''Doc.'''\n(out,) = ctx.saved_tensors\nreturn g * out * (1 - out)",
        ),
    ),
    one_more=(
        function(
            "ctx.save_for_backward(\n    x,\n)\nctx.out = out",
            "x, = ctx.saved_tensors\nreturn g * ctx.out * x",
        ),
        lambda at: special.save_for_backward(at("ctx.out")),
        function(
            "ctx.save_for_backward(\n    x, out)", "x, out = ctx.saved_tensors\nreturn g * out * x"
        ),
    ),
    a_name_that_is_taken=(
        function("ctx.y = out", "out = g\nreturn out * ctx.y"),
        lambda at: special.save_for_backward(at("ctx.y")),
        function(
            "ctx.save_for_backward(out)",
            "(out_saved,) = ctx.saved_tensors\nout = g\nreturn out * out_saved",
        ),
    ),
    read_by_others=(
        function("ctx.save_for_backward(x)\nctx.out = out", "return h(ctx.saved_tensors, ctx.out)"),
        lambda at: special.save_for_backward(at("ctx.out")),
        "",
    ),
    nowhere_read=(
        function("ctx.out = out", "return g"),
        lambda at: special.save_for_backward(at("ctx.out")),
        "",
    ),
)
def test_tensors_are_handed_to_backward_as_autograd_has_it(
    code: str, write: Write, expected: str, tmp_path: Path
) -> None:
    assert after(code, write, tmp_path) == expected


@cases(
    reset=(
        "loss = 0.0  # all\nfor x in xs:\n    loss = loss + f(x)\n    loss.backward()\n",
        lambda at: recompute.reset_at_head(at("loss.backward"), "loss"),
        "loss = 0.0  # all\nfor x in xs:\n    loss = 0.0\n    loss = loss + f(x)\n    loss.backward()\n",
    ),
    reset_of_the_outer=(
        "ls = []\nfor e in es:\n    for x in xs:\n        ls.append(f(x))\n    sum(ls).backward()\n",
        lambda at: recompute.reset_at_head(at("for e"), "ls"),
        "ls = []\nfor e in es:\n    ls = []\n    for x in xs:\n        ls.append(f(x))\n    sum(ls).backward()\n",
    ),
    reset_of_no_constant=(
        "loss = f()\nfor x in xs:\n    loss += g(x)\n",
        lambda at: recompute.reset_at_head(at("loss +="), "loss"),
        "",
    ),
    cut_after=(
        "for x in xs:\n    s = f(x, s)\n    if x: s.sum().backward(retain_graph=True)  # all\n",
        lambda at: moves.detach_after(
            at("s.sum().backward(retain_graph=True)"), ["s"], without=RETAIN
        ),
        "for x in xs:\n    s = f(x, s)\n    if x: s.sum().backward(); s = s.detach()  # all\n",
    ),
    cut_two_after=(
        "a, b = f(a, b)\ng(a)\n",
        lambda at: moves.detach_after(at("g"), ["a", "b"]),
        "a, b = f(a, b)\ng(a)\na = a.detach()\nb = b.detach()\n",
    ),
    cut_a_tuple_after=(
        "s = f(s)\n",
        lambda at: moves.detach_after(at("s"), ["s[0]", "s[1]"], elements=True),
        "s = f(s)\ns = tuple(t.detach() for t in s)\n",
    ),
    cut_a_variable_of_another_scope=(
        "h = 1\ndef f():\n    g(h)\n",
        lambda at: moves.detach_after(at("g(h)"), ["h"]),
        "",
    ),
    cut_a_declared_one=(
        "def f():\n    global h\n    g(h)\n",
        lambda at: moves.detach_after(at("g(h)"), ["h"]),
        "def f():\n    global h\n    g(h)\n    h = h.detach()\n",
    ),
    cut_behind_a_return=(
        "def f(h):\n    return g(h)\n",
        lambda at: moves.detach_after(at("return"), ["h"]),
        "",
    ),
    in_a_class=(
        "class A:\n    h = f(g); x = 1\n",
        lambda at: moves.detach_stored(at("h")),
        "class A:\n    h = f(g).detach(); x = 1\n",
    ),
)
def test_statements_are_put_in(code: str, write: Write, expected: str, tmp_path: Path) -> None:
    assert after(code, write, tmp_path) == expected


@cases(
    two_words_of_a_line=(
        "x = f(\n    a, b\n)  # both\n",
        lambda at: joined(values.detach_reads(at("x"), "a"), values.detach_reads(at("x"), "b")),
        "x = f(\n    a.detach(), b.detach()\n)  # both\n",
    ),
    a_flag_and_what_follows=(
        "f(h).backward(retain_graph=True)\n",
        lambda at: joined(calls.without_flag(at("f"), RETAIN), moves.detach_after(at("f"), ["h"])),
        "f(h).backward()\nh = h.detach()\n",
    ),
    what_follows_twice=(
        "f(h)\n",
        lambda at: joined(moves.detach_after(at("f"), ["h"]), moves.detach_after(at("f"), ["x"])),
        "f(h)\nh = h.detach()\nx = x.detach()\n",
    ),
    a_word_of_what_goes_under_no_grad=(
        "import torch\nx = f(a)\n",
        lambda at: joined(moves.no_grad(at("x = ")), values.clone_reads(at("x = "), "a")),
        "import torch\nwith torch.no_grad():\n    x = f(a.clone())\n",
    ),
    two_that_contradict=(
        "x = f(a)\n",
        lambda at: joined(values.detach_reads(at("x"), "a"), values.clone_reads(at("x"), "a")),
        "",
    ),
    what_one_takes_out=(
        "a.backward()\nb.backward()\n",
        lambda at: joined(
            calls.sum_losses(at("a"), at("b.backward()")),
            calls.with_flag(at("b.backward()"), RETAIN),
        ),
        "",
    ),
)
def test_edits_of_the_same_lines_are_put_together(
    code: str, write: Write, expected: str, tmp_path: Path
) -> None:
    assert after(code, write, tmp_path) == expected


def test_edits_of_two_files_are_one_change(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("net.py", "train.py")]
    files[0].write_text("class Net:\n    def forward(self, x):\n        self.h = f(x, self.h)\n")
    files[1].write_text("loss = g(net.h)\nloss.backward()\n")
    store = values.detach_reads(Site(str(files[0]), 3), "self.h")
    read_ = values.detach_reads(Site(str(files[1]), 1), "net.h")
    assert {edit.file for edit in joined(store, read_)} == {str(file) for file in files}
    assert joined(store, ()) == ()
    assert joined(store, store) == store


def test_an_edit_imports_nothing(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text("h = f(h, f'{h}\\n')\n")
    code = f"""
import sys
from gradscope.fixing import values
from gradscope.model import Site
known = set(sys.modules)
assert values.detach_reads(Site({str(file)!r}, 1), "h")
assert set(sys.modules) == known, set(sys.modules) - known
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@cases(
    a_call_for_the_second_use=(
        """
        logs, seen = [], []
        def play():
            logs.append(f())
            seen.append(1)
        def learn():
            sum(logs).backward()
        play()
        learn()
        learn()
        """,
        lambda at: recompute.refilled(at("logs.append(f())"), at("sum(logs).backward()")),
        """
        logs, seen = [], []
        def play():
            logs.append(f())
            seen.append(1)
        def learn():
            sum(logs).backward()
        play()
        learn()
        logs.clear()
        play()
        learn()
        """,
    ),
    into_the_loop_with_what_is_made_of_it=(
        """
        def train(box):
            s = 0
            for _ in range(3):
                s = s + f(s)
                box.logs.append(s)
            mean = sum(box.logs) / 3
            for _ in range(2):
                (mean + g()).backward()
        """,
        lambda at: recompute.refilled(at("box.logs.append(s)"), at("(mean + g()).backward()")),
        """
        def train(box):
            for _ in range(2):
                box.logs.clear()
                s = 0
                for _ in range(3):
                    s = s + f(s)
                    box.logs.append(s)
                mean = sum(box.logs) / 3
                (mean + g()).backward()
        """,
    ),
    by_the_name_that_the_caller_has=(
        """
        class Agent:
            def play(self, out):
                self.logs[f()].append(g())
                out.append(self.logs)
            def learn(self, seen):
                loss(self.logs, seen).backward()
        def main(agent, rows):
            agent.play(rows)
            while h():
                agent.learn(rows)
        """,
        lambda at: recompute.refilled(
            at("out.append(self.logs)"), at("loss(self.logs, seen).backward()")
        ),
        """
        class Agent:
            def play(self, out):
                self.logs[f()].append(g())
                out.append(self.logs)
            def learn(self, seen):
                loss(self.logs, seen).backward()
        def main(agent, rows):
            while h():
                rows.clear()
                agent.play(rows)
                agent.learn(rows)
        """,
    ),
    used_once=(
        "xs.append(f())\nsum(xs).backward()\n",
        lambda at: recompute.refilled(at("xs.append(f())"), at("sum(xs).backward()")),
        "",
    ),
    in_one_loop_with_its_use=(
        "for _ in a:\n    xs.append(f())\n    sum(xs).backward()\n",
        lambda at: recompute.refilled(at("xs.append(f())"), at("sum(xs).backward()")),
        "",
    ),
    what_may_leave_the_function=(
        """
        def f(xs):
            for x in xs:
                ys.append(x)
                if x: return
            for _ in range(2):
                sum(ys).backward()
        """,
        lambda at: recompute.refilled(at("ys.append(x)"), at("sum(ys).backward()")),
        "",
    ),
)
def test_collect_again(code: str, write: Write, expected: str, tmp_path: Path) -> None:
    assert after(code, write, tmp_path) == expected


@cases(
    a_setting_behind_the_imports=(
        '"""Doc."""\nimport torch\n\nx = 1\n',
        lambda at: special.set_after_imports(at("x").file, "torch.a.b", "False"),
        '"""Doc."""\nimport torch\nimport torch.a\ntorch.a.b = False\n\nx = 1\n',
    ),
    a_decorator_that_compiles=(
        'import torch\n@torch.compile(backend="eager")\n@other\ndef f(x):\n    pass\n',
        lambda at: special.uncompiled(at("def").file),
        "import torch\n@other\ndef f(x):\n    pass\n",
    ),
    a_call_that_compiles=(
        "f = torch.compile(lambda x: x + 1, dynamic=True)\ng(f(1))\n",
        lambda at: special.uncompiled(at("f").file),
        "f = (lambda x: x + 1)\ng(f(1))\n",
    ),
    not_one_of_two_that_compile=(
        "f, g = torch.compile(a), torch.compile(b)\n",
        lambda at: special.uncompiled(at("f").file),
        "",
    ),
    an_argument_for_a_checkpoint=(
        "def f(h, k=1):\n    return h * side + k\ny = checkpoint(f, h, use_reentrant=True)\n",
        lambda at: special.handed_to_checkpoint(at("def").file, ["side"]),
        "def f(h, side, k=1):\n    return h * side + k\ny = checkpoint(f, h, side, use_reentrant=True)\n",
    ),
    not_what_it_makes_itself=(
        "def f(h):\n    side = g(h)\n    return h * side\ny = checkpoint(f, h)\n",
        lambda at: special.handed_to_checkpoint(at("def").file, ["side"]),
        "",
    ),
    no_checkpoint=(
        "y = checkpoint(self.f, h, g(h), use_reentrant=True)  # saves memory\n",
        lambda at: special.without_checkpoint(at("y").file),
        "y = self.f(h, g(h))  # saves memory\n",
    ),
    a_hook_that_takes_a_value=(
        "z.register_hook(lambda g: seen.append(g * z))\n",
        lambda at: special.detach_in_hook(at("z.reg")),
        "z.register_hook(lambda g, z=z.detach(): seen.append(g * z))\n",
    ),
    a_hook_by_its_name=(
        "z = f()\ndef keep(g):\n    seen.append(g * z)\nz.register_hook(keep)\n",
        lambda at: special.detach_in_hook(at("z.reg")),
        "z = f()\ndef keep(g, z=z.detach()):\n    seen.append(g * z)\nz.register_hook(keep)\n",
    ),
    a_hook_before_its_tensor=(
        "def keep(g):\n    seen.append(g * z)\nz = f()\nz.register_hook(keep)\n",
        lambda at: special.detach_in_hook(at("z.reg")),
        "",
    ),
    at_the_end_of_the_loop=(
        "for x in xs:\n    f(x)  # one\n    if x:\n        g(x)\nh()\n",
        lambda at: moves.put_at_end(at("f(x)"), "net.zero_grad()"),
        "for x in xs:\n    f(x)  # one\n    if x:\n        g(x)\n    net.zero_grad()\nh()\n",
    ),
    what_a_function_returns=(
        "@cache\ndef f(x):\n    y = g(x)\n    return y + 1\n",
        lambda at: values.detach_returned(at("def")),
        "@cache\ndef f(x):\n    y = g(x)\n    return (y + 1).detach()\n",
    ),
    not_one_of_two_returns=(
        "def f(x):\n    if x: return x\n    return x + 1\n",
        lambda at: values.detach_returned(at("def")),
        "",
    ),
)
def test_one_kind_of_cause(code: str, write: Write, expected: str, tmp_path: Path) -> None:
    assert after(code, write, tmp_path) == expected

"""What is read again after a backward call, by small programs; the call stands on the line marked ``# <-``."""

from __future__ import annotations

import dis
import gc
import textwrap
import weakref
from collections.abc import Collection, Iterator
from types import CodeType

import pytest

from gradscope.code.liveness import (
    RESULT,
    Callee,
    Effect,
    Read,
    Resolve,
    all_reads,
    assignment_sites,
    call_at,
    calls_after,
)

BACKWARD, FEEDS, AUGMENTED, STORES, HARMLESS = Effect


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def place(source: str, marker: str = "# <-") -> tuple[CodeType, int]:
    """The code object and offset of the last call on the marked line: what a frame would stand at."""
    source = textwrap.dedent(source)
    line = next(
        number
        for number, text in enumerate(source.splitlines(), 1)
        if text.rstrip().endswith(marker)
    )
    found = [
        (code, instruction.offset)
        for code in codes(compile(source, "<program>", "exec"))
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("CALL", "CALL_KW", "CALL_FUNCTION_EX")
        and instruction.positions is not None
        and instruction.positions.lineno == line
    ]
    return found[-1]


def function(source: str, name: str) -> CodeType:
    whole = compile(textwrap.dedent(source), "<program>", "exec")
    return next(code for code in codes(whole) if code.co_qualname == name)


def danger(read: Read) -> tuple[bool, bool, int]:
    if read.backward is not None:  # they are equal in danger: the nearest is what happens next
        return read.only_on_exception, False, 0
    return read.only_on_exception, True, list(Effect).index(read.effect)


def next_reads(
    code: CodeType, lasti: int, names: Collection[str], resolve: Resolve | None = None
) -> dict[str, Read]:
    """For each name that is read again the most dangerous read, the nearest of equal ones."""
    found = all_reads(code, lasti, names, resolve)
    return {name: min(reads, key=danger) for name, reads in found.items()}


def reads(source: str, *names: str) -> dict[str, Read]:
    return next_reads(*place(source), names)


def summary(read: Read) -> tuple[Effect, int, int | None]:
    return read.effect, read.site.line, read.backward.line if read.backward else None


HARMLESS_USES = [
    "print(loss)",
    "print(loss.item())",
    "print(f'{loss:.3f} {float(loss)}')",
    "running += loss.item()",
    "running += loss.detach()",
    "running += float(loss)",
    "history.append(loss.detach().cpu())",
    "history.append(loss.mean().item())",
    "x = loss.data",
    "x = loss.data * 2",
    "x = loss.shape[0] + loss.size(1) + loss.dim()",
    "x = loss.grad",
    "x = torch.zeros_like(loss)",
    "x = loss > best",
    "x = loss is None",
    "x = torch.isfinite(loss).all()",
    "x = (loss.argmax(1) == y).float().mean().item()",
    "x = isinstance(loss, torch.Tensor)",
    "x = loss.tolist()",
    "x = np.mean([loss.item() for loss in (loss,)])",
    "writer.add_scalar('loss', loss, step)",
    "bar.set_postfix(loss=loss)",
    "if loss > 3: raise ValueError(str(loss))",
    "assert not torch.isnan(loss), f'{loss}'",
    "loss.register_hook(print)",
    "loss.mean()",
    "x = {k: v.item() for k, v in {'a': loss}.items()}",
    "x = tuple(s.detach() for s in (loss, loss))",
    "lst = [loss.detach(), *other]",
]


@pytest.mark.parametrize("use", HARMLESS_USES)
@pytest.mark.parametrize("where", ["module", "function"])
def test_looking_at_values_is_harmless(use: str, where: str) -> None:
    if where == "module":
        found = reads(f"loss.backward()  # <-\n{use}\nprint(x)\n", "loss")
    else:
        found = reads(
            f"def f(loss, best, running):\n    loss.backward()  # <-\n    {use}\n    return x\n",
            "loss",
        )
    assert found["loss"].effect is HARMLESS
    assert found["loss"].backward is None


DANGEROUS_USES = [
    ("loss.backward()", BACKWARD),
    ("(loss + 1).backward()", BACKWARD),
    ("(0.5 * loss).mean().backward()", BACKWARD),
    ("torch.autograd.backward([loss, other])", BACKWARD),
    ("torch.autograd.backward(tensors=[loss])", BACKWARD),
    ("g = torch.autograd.grad(loss, w)", BACKWARD),
    ("g, = grad(outputs=loss, inputs=w)", BACKWARD),
    ("scaler.scale(loss).backward()", BACKWARD),
    ("accelerator.backward(loss)", BACKWARD),
    ("self.manual_backward(loss)", BACKWARD),
    ("sum([loss, other]).backward()", BACKWARD),
    ("[l.backward() for l in (loss, other)]", BACKWARD),
    ("x = loss * 2", FEEDS),
    ("x = -loss", FEEDS),
    ("x = model(loss)", FEEDS),
    ("x = F.mse_loss(pred, target=loss)", FEEDS),
    ("x, y = rnn(inp, loss)", FEEDS),
    ("x = f(*args, loss)", FEEDS),
    ("x = f(**{'a': loss})", FEEDS),
    ("self.x = loss.exp()", FEEDS),
    ("cache['k'] = loss.exp()", FEEDS),
    ("x = torch.stack([loss, other]).mean()", FEEDS),
    ("x = [l * 2 for l in losses if l is not loss] + [loss * 2]", FEEDS),
    ("loss = loss * 2", AUGMENTED),  # indistinguishable from a running total
    ("total += loss", AUGMENTED),
    ("total = total + loss", AUGMENTED),
    ("total = loss + total", AUGMENTED),
    ("total -= loss.mean()", AUGMENTED),
    ("self.total += loss", AUGMENTED),
    ("table['x'] += loss", AUGMENTED),
    ("total.add_(loss)", AUGMENTED),
    ("prev = loss", STORES),
    ("self.prev = loss", STORES),
    ("history.append(loss)", STORES),
    ("history[i] = loss", STORES),
    ("history += [loss]", STORES),
    ("x = [loss, other]", STORES),
    ("x = {'a': loss}", STORES),
    ("logger.collect(loss)", STORES),
    ("best = min(best, loss)", STORES),
    ("if (x := loss) is not None: pass", STORES),
    ("a = b = loss", STORES),
    ("a, *b = loss, other, third, fourth", STORES),
]


@pytest.mark.parametrize(("use", "effect"), DANGEROUS_USES)
def test_uses_that_build_or_keep(use: str, effect: Effect) -> None:
    found = reads(f"loss.backward()  # <-\n{use}\n", "loss")
    assert (found["loss"].effect, found["loss"].site.line) == (effect, 2)
    assert (found["loss"].backward is not None) == (effect is BACKWARD)


def test_the_place_of_a_read() -> None:
    read = reads("loss.backward()  # <-\nx = (other + loss) * 2\n", "loss")["loss"]
    assert (read.site.line, read.site.column, read.site.end_line, read.site.end_column) == (
        2,
        14,
        2,
        18,
    )
    assert (read.site.file, read.site.function) == ("<program>", "<module>")


@pytest.mark.parametrize(
    "use",
    ["loss = model(x)", "del loss", "loss = None", "for loss in xs: pass", "with open(p) as loss: pass", "import loss",
     "loss, x = f()", "x, *loss = f()", "(loss := f())", "def loss(): pass", "class loss: pass", "loss: int = 3"],
)  # fmt: skip
def test_a_rebound_name_is_not_read(use: str) -> None:
    assert reads(f"loss.backward()  # <-\n{use}\n", "loss") == {}


def test_what_is_read_before_it_is_rebound_in_the_same_statement() -> None:
    assert summary(reads("loss.backward()  # <-\nh = cell(x, h)\n", "h")["h"]) == (FEEDS, 2, None)


def test_detach_in_place_and_clear_end_the_life_of_a_name() -> None:
    assert reads("loss.backward()  # <-\nh.detach_()\ny = h * 2\n", "h")["h"].effect is HARMLESS
    assert reads("loss.backward()  # <-\nlosses.clear()\nsum(losses).backward()\n", "losses[0]", "losses")[
        "losses"
    ].backward is None  # fmt: skip


LOOPS = {
    "carried state": (
        "h = 0\nfor x in xs:\n    h = cell(x, h)\n    crit(h).backward()  # <-\n",
        (FEEDS, 3, 4),
        True,
    ),
    "detached state": (
        "h = 0\nfor x in xs:\n    h = cell(h.detach())\n    crit(h).backward()  # <-\n",
        (HARMLESS, 3, None),
        True,
    ),
    "made outside": (
        "h = net(x)\nfor y in ys:\n    loss = f(h, y)\n    loss.backward()  # <-\n",
        (FEEDS, 3, 4),
        True,
    ),
    "while": ("h = net(x)\nwhile go():\n    f(h).backward()  # <-\n", (BACKWARD, 3, 3), True),
    "while true": (
        "while True:\n    loss = f(h)\n    loss.backward()  # <-\n    if done: break\n    n = 1\n",
        (FEEDS, 2, 3),
        True,
    ),
    "after the loop": (
        "for x in xs:\n    f(x).backward()  # <-\nh.backward()\n",
        (BACKWARD, 3, 3),
        False,
    ),
    "for else": (
        "for x in xs:\n    f(x).backward()  # <-\nelse:\n    y = g(h)\n",
        (FEEDS, 4, None),
        False,
    ),
    "continue": (
        "for x in xs:\n    f(x).backward()  # <-\n    if x: continue\n    h = 0\nh.backward()\n",
        (BACKWARD, 5, 5),
        False,
    ),
    "nested": (
        "for e in es:\n    z = e\n    for h in hs:\n        f(h).backward()  # <-\n    y = z\nu = h + 1\n",
        (FEEDS, 6, None),
        False,
    ),
    "alias over iterations": (
        "for x in xs:\n    y = prev * x\n    h = f(y)\n    h.backward()  # <-\n    prev = h\n",
        (FEEDS, 2, 4),
        True,
    ),
    "running total": (
        "for x in xs:\n    h = h + f(x)\n    h.backward()  # <-\n",
        (AUGMENTED, 2, 3),
        True,
    ),
}


@pytest.mark.parametrize("wrap", ["", "def f(xs, h=None):\n"], ids=["module", "function"])
@pytest.mark.parametrize(("source", "expected", "later"), LOOPS.values(), ids=LOOPS)
def test_loops(
    source: str, expected: tuple[Effect, int, int | None], later: bool, wrap: str
) -> None:
    shift = 0
    if wrap:
        source, shift = wrap + textwrap.indent(source, "    "), 1
    read = reads(source, "h")["h"]
    effect, line, backward = summary(read)
    assert (effect, line - shift, backward and backward - shift) == expected
    assert read.after_back_edge == later


def test_the_rest_of_the_outer_iteration_is_no_later_iteration() -> None:
    source = "for e in es:\n    for x in xs:\n        f(z).backward()  # <-\n    y = h * 2\n    z = g(y)\n"
    found = all_reads(*place(source), ["h", "z"])
    assert [(read.site.line, read.after_back_edge) for read in found["h"]] == [(4, False)]
    assert [(read.site.line, read.after_back_edge) for read in found["z"]] == [(3, True)]


def test_rebound_at_the_top_of_the_loop() -> None:
    source = "for x in xs:\n    loss = f(x)\n    total = g(loss)\n    total.backward()  # <-\n"
    assert reads(source, "loss", "total", "x") == {}


BRANCHES = {
    "one branch reads": ("h.backward()  # <-\nif a:\n    x = h * 2\nelse:\n    h = 0\n", (FEEDS, 3, None)),
    "worst of two": ("h.backward()  # <-\nif a:\n    print(h)\nelse:\n    h.backward()\n", (BACKWARD, 5, 5)),
    "conditional expression": ("h.backward()  # <-\ny = h * 2 if a else 0\n", (FEEDS, 2, None)),
    "and or": ("h.backward()  # <-\ny = a and h or b\n", (STORES, 2, None)),
    "match": ("h.backward()  # <-\nmatch a:\n    case [x]:\n        z = x * h\n    case _: pass\n", (FEEDS, 4, None)),
    "matched itself": ("h.backward()  # <-\nmatch h:\n    case (x, y):\n        z = x * 2\n", (FEEDS, 4, None)),
    "through try": ("try:\n    h.backward()  # <-\nexcept E:\n    pass\ny = h * 2\n", (FEEDS, 5, None)),
    "finally": ("try:\n    h.backward()  # <-\nfinally:\n    y = h * 2\n", (FEEDS, 4, None)),
    "with": ("with lock:\n    h.backward()  # <-\n    y = h * 2\n", (FEEDS, 3, None)),
    "after with": ("with lock:\n    h.backward()  # <-\ny = h * 2\n", (FEEDS, 3, None)),
}  # fmt: skip


@pytest.mark.parametrize(("source", "expected"), BRANCHES.values(), ids=BRANCHES)
def test_branches(source: str, expected: tuple[Effect, int, int | None]) -> None:
    read = reads(source, "h")["h"]
    assert summary(read) == expected
    assert not read.only_on_exception


def test_a_read_in_a_handler_counts_weakly() -> None:
    source = "try:\n    h.backward()  # <-\n    h = None\nexcept E:\n    y = h * 2\n"
    read = reads(source, "h")["h"]
    assert read.effect is FEEDS
    assert read.only_on_exception


def test_a_read_that_is_also_reached_normally_is_no_exception() -> None:
    source = "try:\n    h.backward()  # <-\nexcept E:\n    pass\nh.backward()\n"
    assert not reads(source, "h")["h"].only_on_exception


NO_GRAD = {
    "with": "h.backward()  # <-\nwith torch.no_grad():\n    y = h * 2\n",
    "inference mode": "h.backward()  # <-\nwith torch.inference_mode():\n    y = f(h)\n",
    "set_grad_enabled": "h.backward()  # <-\nwith torch.set_grad_enabled(False):\n    y = f(h)\n",
    "already inside": "with torch.no_grad():\n    h.backward()  # <-\n    y = h * 2\n",
    "nested in others": "h.backward()  # <-\nwith a, no_grad(), b:\n    for x in xs:\n        y = f(h, x)\n",
    "decorated": "@torch.no_grad()\ndef g(t):\n    return t * 2\nh.backward()  # <-\ny = g(h)\n",
    "decorated bare": "@inference_mode\ndef g():\n    global y\n    y = h * 2\nh.backward()  # <-\ng()\n",
}


@pytest.mark.parametrize("source", NO_GRAD.values(), ids=NO_GRAD)
def test_nothing_is_built_under_no_grad(source: str) -> None:
    assert reads(source, "h")["h"].effect is HARMLESS


@pytest.mark.parametrize(
    "source",
    [
        "h.backward()  # <-\nwith torch.no_grad():\n    pass\ny = h * 2\n",
        "h.backward()  # <-\nwith torch.enable_grad():\n    y = h * 2\n",
        "h.backward()  # <-\nwith torch.set_grad_enabled(True):\n    y = h * 2\n",
        "h.backward()  # <-\nwith torch.set_grad_enabled(training):\n    y = h * 2\n",
        "h.backward()  # <-\nwith torch.autocast('cpu'):\n    y = h * 2\n",
    ],
)
def test_gradients_are_on_elsewhere(source: str) -> None:
    assert reads(source, "h")["h"].effect is FEEDS


def test_nothing_is_built_under_no_grad_in_a_function_of_a_module_that_imports_torch() -> None:
    """Python 3.11 and 3.12 load the function of an imported module as an attribute."""
    source = """
import torch

def f(h):
    with torch.no_grad():
        y = torch.exp(h)
    return y
"""
    (read,) = all_reads(function(source, "f"), -1, ("h",))["h"]
    assert read.effect is HARMLESS


@pytest.mark.parametrize("result", ['f(d)["loss"]', "f(d)[0]", "f(d)"])
def test_what_is_computed_from_a_dict_with_a_built_value_is_built(result: str) -> None:
    source = f"""
    for x in xs:
        d = {{}}
        h = g(x, h)
        d["h"] = h
        y = {result}
        y.backward()  # <-
    """
    assert any(read.backward is not None for read in all_reads(*place(source), ("h",))["h"])


def test_backward_under_no_grad_is_a_backward() -> None:
    assert (
        reads("h.backward()  # <-\nwith torch.no_grad():\n    h.backward()\n", "h")["h"].effect
        is BACKWARD
    )


ALIASES = {
    "name": "h.backward()  # <-\np = h\np.backward()\n",
    "chain": "h.backward()  # <-\np = h\nq = p\nr = q\nr.backward()\n",
    "tuple": "h.backward()  # <-\np, q = h, 0\np.backward()\n",
    "long tuple": "h.backward()  # <-\nz, y, p, q = 0, 0, h, 0\np.backward()\n",
    "swap": "h.backward()  # <-\np, h = h, p\np.backward()\n",
    "list": "h.backward()  # <-\np = [h]\np[0].backward()\n",
    "appended": "h.backward()  # <-\np.append(h)\nsum(p).backward()\n",
    "dict": "h.backward()  # <-\np['a'] = h\np['a'].backward()\n",
    "values": "h.backward()  # <-\np['a'] = h\nfor v in p.values():\n    v.backward()\n",
    "attribute": "h.backward()  # <-\nself.p = h\nself.p.backward()\n",
    "walrus": "h.backward()  # <-\nif (p := h) is not None:\n    p.backward()\n",
    "zip": "h.backward()  # <-\nfor p, q in zip([h], other):\n    p.backward()\n",
    "enumerate": "h.backward()  # <-\nfor i, p in enumerate((h, 1)):\n    p.backward()\n",
    "starred": "h.backward()  # <-\na, *p = 1, h\np[0].backward()\n",
    "comprehension": "h.backward()  # <-\np = [t for t in [h]]\np[0].backward()\n",
    "conditional": "h.backward()  # <-\np = h if a else b\np.backward()\n",
    "return value": "def same(t):\n    return t\nh.backward()  # <-\nsame(h).backward()\n",
    "derived": "h.backward()  # <-\np = h * 2\nq = [p]\nr = sum(q)\nr.backward()\n",
    "await": "async def f(h):\n    h.backward()  # <-\n    p = await g(h)\n    p.backward()\n",
}


@pytest.mark.parametrize("source", ALIASES.values(), ids=ALIASES)
def test_aliases_are_followed_to_the_backward_call(source: str) -> None:
    read = reads(source, "h")["h"]
    assert read.backward is not None
    assert read.backward.line == source.count("\n")


def test_sibling_names_are_kept_apart() -> None:
    source = "h.backward()  # <-\np, q = h, other\nq.backward()\n"
    assert reads(source, "h")["h"].backward is None
    source = "h.backward()  # <-\na, b, c, d = 0, h, 1, 2\na.backward(); c.backward()\n"
    assert reads(source, "h")["h"].backward is None


CONTAINERS = {
    "other constant element": (
        "losses[0].backward()  # <-\nlosses[2].backward()\n",
        "losses[1]",
        False,
    ),
    "this constant element": (
        "losses[0].backward()  # <-\nlosses[1].backward()\n",
        "losses[1]",
        True,
    ),
    "computed element": ("losses[0].backward()  # <-\nlosses[i].backward()\n", "losses[1]", True),
    "all elements": ("losses[0].backward()  # <-\nsum(losses).backward()\n", "losses[1]", True),
    "other key": ("x.backward()  # <-\ncache['b'].backward()\n", "cache['a']", False),
    "this key": ("x.backward()  # <-\ncache['a'].backward()\n", "cache['a']", True),
    "path": ("x.backward()  # <-\nreplay[3][1].backward()\n", "replay[3][1]", True),
    "element rebound": (
        "x.backward()  # <-\ncache['a'] = 0\ncache['a'].backward()\n",
        "cache['a']",
        False,
    ),
    "element deleted": (
        "x.backward()  # <-\ndel cache['a']\ncache['a'].backward()\n",
        "cache['a']",
        False,
    ),
    "container rebound": (
        "x.backward()  # <-\ncache = {}\ncache['a'].backward()\n",
        "cache['a']",
        False,
    ),
    "attribute": ("x.backward()  # <-\nself.h.backward()\n", "self.h", True),
    "other attribute": ("x.backward()  # <-\nself.g.backward()\n", "self.h", False),
    "attribute of an element": ("x.backward()  # <-\nnets[0].h.backward()\n", "nets[0].h", True),
    "attribute rebound": ("x.backward()  # <-\nself.h = 0\nself.h.backward()\n", "self.h", False),
    "attribute deleted": ("x.backward()  # <-\ndel self.h\nself.h.backward()\n", "self.h", False),
    "owner has an alias": (
        "x.backward()  # <-\nm = self.net\nm.h.backward()\n",
        "self.net.h",
        True,
    ),
    "alias then elements": (
        "x.backward()  # <-\nm = cache\nm['a'].backward()\n",
        "cache['a']",
        True,
    ),
}


@pytest.mark.parametrize(("source", "name", "found"), CONTAINERS.values(), ids=CONTAINERS)
def test_attributes_and_elements(source: str, name: str, found: bool) -> None:
    read = reads(source, name).get(name)
    assert (read is not None and read.backward is not None) == found


def test_the_iterator_of_the_running_loop_still_holds_the_list() -> None:
    read = reads("for loss in losses:\n    loss.backward()  # <-\n", "losses[1]")["losses[1]"]
    assert (read.effect, read.backward and read.backward.line) == (BACKWARD, 2)
    assert read.via == "loss"
    zipped = "for loss, w in zip(losses, ws):\n    (w * loss).backward()  # <-\n"
    assert reads(zipped, "losses")["losses"].effect is BACKWARD
    assert reads("for x in list(xs):\n    f(x).backward()  # <-\n", "losses") == {}


FUNCTIONS = {
    "closure called": "def f(h):\n    def g():\n        return h * 2\n    h.backward()  # <-\n    g().backward()\n",
    "lambda called": "h.backward()  # <-\ng = lambda: h * 2\ng().backward()\n",
    "closure handed over": "def closure():\n    f(h).backward()\nopt.step(closure)  # <-\nopt.step(closure)\n",
    "argument": "def step(t, scale=1):\n    (t * scale).backward()\nh.backward()  # <-\nstep(h)\n",
    "keyword": "def step(*, t):\n    t.backward()\nh.backward()  # <-\nstep(t=h)\n",
    "star": "def step(*ts, **kw):\n    ts[0].backward()\nh.backward()  # <-\nstep(1, h)\n",
    "global": "def step():\n    return f(h)\nh.backward()  # <-\nstep().backward()\n",
    "two deep": "def a():\n    return f(h)\ndef b():\n    return a()\nh.backward()  # <-\nb().backward()\n",
    "generator expression": "h.backward()  # <-\nsum(t * h for t in ts).backward()\n",
    "list comprehension": "h.backward()  # <-\nsum([t * h for t in ts]).backward()\n",
    "dict comprehension": "h.backward()  # <-\nsum({t: h[t] for t in ts}.values()).backward()\n",
    "over itself": "h.backward()  # <-\nsum([t * 2 for t in h]).backward()\n",
    "generator": "def gen(t):\n    yield t * 2\nh.backward()  # <-\nfor x in gen(h):\n    x.backward()\n",
    "sort key": "h.backward()  # <-\nx = g(lambda: h)\nx.backward()\n",
}


@pytest.mark.parametrize("source", FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_of_the_same_code_are_looked_into(source: str) -> None:
    read = reads(source, "h")["h"]
    assert read.backward is not None


def test_a_function_that_detaches_is_seen_to() -> None:
    source = """
        def repackage(h):
            if isinstance(h, Tensor):
                return h.detach()
            return tuple(repackage(v) for v in h)

        for x in xs:
            h = repackage(h)
            out, h = rnn(x, h)
            out.mean().backward()  # <-
        """
    assert reads(source, "h")["h"].effect is HARMLESS


def test_a_function_that_resets_is_seen_to() -> None:
    source = """
        def reset():
            global h
            h = zeros()

        for x in xs:
            reset()
            h = rnn(x, h)
            h.backward()  # <-
        """
    assert reads(source, "h") == {}
    assert reads(source.replace("    reset()\n", "    pass\n"), "h")["h"].effect is FEEDS


def test_defining_a_closure_is_not_reading() -> None:
    assert (
        reads(
            "def f(h):\n    h.backward()  # <-\n    def g():\n        return h * 2\n    k = lambda: h\n",
            "h",
        )
        == {}
    )


def test_capturing_two_variables_at_once_is_not_reading() -> None:
    source = "def f(h, l):\n    l.backward()  # <-\n    x = 1\n    g = lambda: h + l + x\n"
    assert reads(source, "h", "l") == {}
    assert reads(source + "    g().backward()\n", "h", "l")["l"].backward is not None


def test_a_comprehension_variable_is_its_own() -> None:
    assert (
        reads("def f(h, hs):\n    g(h).backward()  # <-\n    return [h * 2 for h in hs]\n", "h")
        == {}
    )
    later = (
        "def f(h, hs):\n    g(h).backward()  # <-\n    x = [h * 2 for h in hs]\n    h.backward()\n"
    )
    assert summary(reads(later, "h")["h"]) == (BACKWARD, 4, 4)


def test_nonlocal_and_global_names() -> None:
    nonlocal_ = "def f():\n    h = 1\n    def g():\n        nonlocal h\n        h.backward()  # <-\n        h = h * 2\n"
    assert reads(nonlocal_, "h")["h"].effect is AUGMENTED
    global_ = "def g():\n    global h\n    h.backward()  # <-\n    x = h\n    x.backward()\n"
    assert reads(global_, "h")["h"].effect is BACKWARD
    in_class = "class C:\n    h.backward()  # <-\n    x = h * 2\n"
    assert reads(in_class, "h")["h"].effect is FEEDS


def test_generators_and_returns_hand_out() -> None:
    assert reads("def f(h):\n    h.backward()  # <-\n    yield h\n", "h")["h"].effect is STORES
    assert (
        reads("def f(h):\n    h.backward()  # <-\n    x = yield\n    y = x + h\n", "h")["h"].effect
        is FEEDS
    )
    assert reads("def f(h):\n    h.backward()  # <-\n    return h\n", "h")["h"].effect is STORES
    assert reads("def f(h):\n    h.backward()  # <-\n    return h * 2\n", "h")["h"].effect is FEEDS
    assert (
        reads("def f(h):\n    h.backward()  # <-\n    return h.item()\n", "h")["h"].effect
        is HARMLESS
    )
    assert reads("def f(h):\n    h.backward()  # <-\n    yield from h\n", "h")["h"].effect is STORES


def test_what_the_pending_call_returns() -> None:
    assert summary(
        next_reads(*place("loss = step(x)  # <-\n(loss * 2).backward()\n"), [RESULT])[RESULT]
    ) == (
        BACKWARD,
        2,
        2,
    )
    assert (
        next_reads(*place("loss = step(x)  # <-\nprint(loss)\n"), [RESULT])[RESULT].effect is STORES
    )
    assert next_reads(*place("print(step(x).item())\nstep(x)  # <-\n"), [RESULT]) == {}
    assert next_reads(*place("total += step(x)  # <-\n"), [RESULT])[RESULT].effect is AUGMENTED


def test_reads_come_in_the_order_of_execution() -> None:
    source = "for x in xs:\n    a = f(h)\n    a.backward()  # <-\n    print(h)\n    b = h * 2\n"
    found = all_reads(*place(source), ["h"])["h"]
    assert [(read.site.line, read.effect, read.after_back_edge) for read in found] == [
        (4, HARMLESS, False),
        (5, FEEDS, False),
        (2, FEEDS, True),
    ]


def test_the_most_dangerous_read_is_the_answer() -> None:
    source = "h.backward()  # <-\nprint(h)\ntotal += h\ny = h * 2\n"
    assert next_reads(*place(source), ["h"])["h"].site.line == 4


METHODS = """
    class Net:
        def __init__(self):
            self.memory = zeros()

        def forward(self, x):
            out, self.memory = self.rnn(x, self.memory)
            return out

        def fresh(self, x):
            self.memory = zeros()
            return x * self.memory

        def look(self):
            print(self.memory.shape)

        def cached(self):
            if self.memory is None:
                self.memory = self.make()
            return self.memory

        @staticmethod
        def nothing():
            return memory
    """


def test_what_a_method_reads_from_its_start() -> None:
    found = {
        name: next_reads(function(METHODS, f"Net.{name}"), -1, ["self.memory"]).get("self.memory")
        for name in ("__init__", "forward", "fresh", "look", "cached", "nothing")
    }
    assert {name: read and read.effect for name, read in found.items()} == {
        "__init__": None,
        "forward": FEEDS,
        "fresh": None,
        "look": HARMLESS,
        "cached": STORES,
        "nothing": None,
    }
    assert found["forward"] is not None
    assert (found["forward"].site.line, found["forward"].site.function) == (7, "Net.forward")


def test_resolved_methods_link_the_owner_to_self() -> None:
    source = (
        METHODS + "\n    for x in xs:\n        loss = model(x)\n        loss.backward()  # <-\n"
    )
    code, offset = place(source)
    targets = {"model": "forward"}

    def resolve(path: str) -> Callee | None:
        return (
            Callee(function(source, f"Net.{targets[path]}"), owner="model")
            if path in targets
            else None
        )

    read = next_reads(code, offset, ["model.memory"], resolve)["model.memory"]
    assert (read.site.function, read.effect) == ("Net.forward", FEEDS)
    assert read.backward is not None
    assert read.backward.function == "<module>"
    targets["model"] = "fresh"
    assert next_reads(code, offset, ["model.memory"], resolve) == {}
    assert next_reads(code, offset, ["model.memory"]) == {}  # unknown: silent


def test_attributes_and_elements_are_read() -> None:
    code, offset = place(
        "x.backward()  # <-\na.h.backward()\nb.h = 0\ny = b.h * 2\nz = c.h * 2\nu = xs[3] + 1\n"
    )
    found = next_reads(code, offset, ["a.h", "b.h", "c.h", "xs[3]"])
    effects = {name: read.effect for name, read in found.items()}
    assert effects == {"a.h": BACKWARD, "c.h": FEEDS, "xs[3]": FEEDS}


def test_calls_after() -> None:
    source = "for x in xs:\n    loss = net.f(x)\n    loss.backward()  # <-\n    opt.step(closure)\nprint(done)\n"
    calls = calls_after(*place(source))
    assert [(call.target, call.after_back_edge) for call in calls] == [
        ("opt.step", False),
        ("print", False),
        ("net.f", True),
        ("loss.backward", True),
    ]
    assert calls[0].site.line == 4


def test_call_at_tells_computed_keywords() -> None:
    call = call_at(
        *place("torch.autograd.grad(y[i], x, retain_graph=i < 3, create_graph=True)  # <-\n")
    )
    assert call is not None
    assert call.target == "torch.autograd.grad"
    assert call.computed == {"retain_graph"}


def test_assignment_sites() -> None:
    code, _ = place(
        "h = 0\nh, self.m = f()\nfor h in hs:\n    c['k'] = h\ndel h\nh.backward()  # <-\n"
    )
    assert [site.line for site in assignment_sites(code, "h")] == [1, 2, 3]
    assert [(site.line, site.column) for site in assignment_sites(code, "self.m")] == [(2, 4)]
    assert [site.line for site in assignment_sites(code, "c['k']")] == [4]


def test_lasti_may_point_into_inline_caches() -> None:
    code, offset = place("loss.backward()  # <-\ny = h * 2\n")
    following = min(i.offset for i in dis.get_instructions(code) if i.offset > offset)
    for inside in range(offset, following, 2):
        assert next_reads(code, inside, ["h"])["h"].site.line == 2


def test_code_objects_are_not_kept_alive() -> None:
    code = compile(
        "def f(h):\n    h.backward()\n    g = [h for _ in x]\n", "<program>", "exec"
    ).co_consts[0]
    assert isinstance(code, CodeType)
    next_reads(code, -1, ["h"])
    gone = weakref.ref(code)
    del code
    gc.collect()
    assert gone() is None

"""Programs around custom operators and the ways in which a Function may be written; as in compiled_programs.

Each of ``GRAPHS`` makes a graph, and says what may be changed in place that it has saved. Each of ``LIVES`` says which
backward calls are made on one. A program is one of each.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from operator import methodcaller
from typing import Any, NamedTuple

import torch
from compiled_programs import Calls, leaf
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.func import vjp, vmap

from tests.needs import has


class Graph(NamedTuple):
    """A graph whose ``out`` leads to ``leaf``; it has saved ``saved``."""

    out: Tensor
    leaf: Tensor
    saved: Tensor


GRAPHS: dict[str, Callable[[], Graph]] = {}


def graph(make: Callable[[], Graph]) -> Callable[[], Graph]:
    GRAPHS[make.__name__] = make
    return make


# operators


def cube(x: Tensor) -> Tensor:
    return x**3


def save_input(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(inputs[0])


def of_cube(ctx: Any, gradient: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    gradient_of_cube: Tensor = gradient * 3 * x * x
    return gradient_of_cube


def scale(x: Tensor, factor: Tensor, *, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    return x * factor + offset, factor.exp()


def save_both(
    ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any
) -> None:
    ctx.save_for_backward(*inputs, output[1], None)
    ctx.offset = keyword_only_inputs["offset"]


def of_scale(ctx: Any, gradient: Tensor, of_second: Tensor) -> tuple[Tensor, Tensor]:
    x, factor, second, nothing = ctx.saved_tensors
    assert nothing is None
    return gradient * factor, gradient * x + of_second * second


def rows(parts: list[Tensor], factor: float) -> list[Tensor]:
    return [part * part * factor for part in parts]


def save_rows(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[0])
    ctx.factor = inputs[1]


def of_rows(ctx: Any, gradients: list[Tensor]) -> tuple[list[Tensor], None]:
    saved = ctx.saved_tensors
    return [g * x * 2 * ctx.factor for g, x in zip(gradients, saved, strict=True)], None


def add_one(x: Tensor) -> None:
    x.add_(1)


def vmap_of_cube(
    info: Any, in_dims: tuple[int | None, ...], x: Tensor
) -> tuple[Tensor, int | None]:
    return operator("cube")(x), in_dims[0]


@functools.cache
def defined() -> None:
    """Define the operators, which last as long as the process."""
    library: Any = torch.library
    make = functools.partial(library.custom_op, mutates_args=())
    for function, backward, setup in (
        (cube, of_cube, save_input),
        (scale, of_scale, save_both),
        (rows, of_rows, save_rows),
    ):
        made = make(f"gradscope_tests::{function.__name__}")(function)
        made.register_autograd(backward, setup_context=setup)
    library.custom_op("gradscope_tests::add_one", mutates_args=("x",))(add_one)
    library.define("gradscope_tests::defined", "(Tensor x) -> Tensor")
    library.impl("gradscope_tests::defined", "cpu", cube)
    library.register_autograd("gradscope_tests::defined", of_cube, setup_context=save_input)
    if has(REGISTERS_VMAP):
        library.register_vmap("gradscope_tests::cube", vmap_of_cube)
    if has(TRITON):
        made = library.triton_op("gradscope_tests::triton", mutates_args=())(cube)
        made.register_autograd(of_cube, setup_context=save_input)


REGISTERS_VMAP, TRITON = "library.register_vmap", "library.triton_op"
NEEDS = {"an_operator_under_vmap": (REGISTERS_VMAP,), "an_operator_of_triton": (TRITON,)}


def operator(name: str) -> Any:
    defined()
    return getattr(torch.ops.gradscope_tests, name)


@graph
def an_operator() -> Graph:
    x = leaf(3)
    h = x.sin()
    return Graph(operator("cube")(h), x, h)


@graph
def an_operator_of_two_results() -> Graph:
    x, factor = leaf(3), leaf(3).sin()
    out, second = operator("scale")(x.sin(), factor, offset=0.5)
    return Graph(out + second, x, factor)


@graph
def an_operator_on_lists() -> Graph:
    x = leaf(3)
    parts = [x.sin(), x.cos()]
    return Graph(torch.stack(operator("rows")(parts, 2.0)), x, parts[1])


@graph
def an_operator_that_was_defined() -> Graph:
    x = leaf(3)
    h = x.sin()
    return Graph(operator("defined")(h), x, h)


@graph
def an_operator_of_triton() -> Graph:
    x = leaf(3)
    h = x.sin()
    return Graph(operator("triton")(h), x, h)


@graph
def an_operator_under_vmap() -> Graph:
    x = leaf(4, 3)
    h = x.sin()
    return Graph(vmap(operator("cube"))(h), x, h)


# Functions: of each the forward saves, and the backward reads, in another way


class Plain(Function):
    """Saves its input, and None, and keeps a number on the context."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float = 1.0) -> Any:
        ctx.save_for_backward(x, None)
        ctx.factor = factor
        return x * x * factor

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, nothing = ctx.saved_tensors
        assert nothing is None
        return gradients[0] * 2 * x * ctx.factor, None


class Once(Plain):
    backward = staticmethod(once_differentiable(Plain.backward))  # type: ignore[assignment]


class WithContext(Function):
    """Sets its context up apart from its forward, also for a forward derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] * 2 * ctx.saved_tensors[0]

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Any:
        return tangents[0] * 2 * ctx.saved_for_forward[0]


class WithVmap(WithContext):
    generate_vmap_rule = False

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
        return WithVmap.apply(x), in_dims[0]


class Unmaterialized(Plain):
    """Has a second result, of which no gradient comes, and a third, of which none can."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float = 1.0) -> Any:
        ctx.set_materialize_grads(False)
        larger = x > 0
        ctx.mark_non_differentiable(larger)
        return Plain.forward(ctx, x, factor), x.exp(), larger

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        assert gradients[1] is None
        return Plain.backward(ctx, *gradients)


class Dirty(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.exp_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] * ctx.saved_tensors[0]


class Nested(Plain):
    """Applies another Function in its backward, and one in its forward that leaves no node."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float = 1.0) -> Any:
        Plain.apply(x)
        return Plain.forward(ctx, x, factor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        found: Tensor = Plain.backward(ctx, *gradients)[0]
        return found + 0 * Plain.apply(gradients[0]), None


class ByClass(Plain):
    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return super(ByClass, ByClass).backward(ctx, *gradients)


class Reader:
    """Something of the program's that is handed a context."""

    def read(self, ctx: Any, *gradients: Tensor) -> Any:
        return Plain.backward(ctx, *gradients)

    __call__ = read


class Registry:
    reader = Reader()


TABLE = {"plain": Plain.backward}


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*given: Any) -> Any:
        with contextlib.nullcontext():
            return function(*given)

    return wrapper


class ByObject(Plain):
    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return Registry.reader.read(ctx, *gradients)


class ByCalledObject(Plain):
    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return Registry.reader(ctx, *gradients)


class ByTable(Plain):
    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return TABLE["plain"](ctx, *gradients)


class ByContext(Plain):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float = 1.0) -> Any:
        ctx.read = Plain.backward
        return Plain.forward(ctx, x, factor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return ctx.read(ctx, *gradients)


class ByPartial(Plain):
    backward = functools.partial(Plain.backward)


class ByDecorator(Plain):
    backward = staticmethod(decorated(Plain.backward))


class ByClosure(Plain):
    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        def read() -> Any:
            return ctx.saved_tensors[0]

        return gradients[0] * 2 * read() * ctx.factor, None


class ByGetter(Plain):
    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] * 2 * methodcaller("__getattribute__", NAME)(ctx)[0], None


NAME = "saved_tensors"


def of(function: type[Function]) -> Callable[[], Graph]:
    def make() -> Graph:
        x = leaf(3)
        h = x.sin()
        out = function.apply(h)
        return Graph(out if isinstance(out, Tensor) else out[0], x, h)

    return make


FUNCTIONS = (
    *(Plain, WithContext, WithVmap, Unmaterialized, Nested, ByClass, ByObject, ByCalledObject),
    *(ByTable, ByContext, ByPartial, ByDecorator, ByClosure, ByGetter),
)
GRAPHS |= {function.__name__: of(function) for function in FUNCTIONS}
GRAPHS["Once"] = of(Once)


@graph
def a_changed_input() -> Graph:
    x = leaf(3)
    out = Dirty.apply(x.sin())
    return Graph(out, x, out)


@graph
def a_generated_vmap_rule() -> Graph:
    x = leaf(4, 3)
    h = x.sin()
    return Graph(vmap(WithContext.apply)(h), x, h)


@graph
def a_vmap_rule_of_its_own() -> Graph:
    x = leaf(4, 3)
    h = x.sin()
    return Graph(vmap(WithVmap.apply)(h), x, h)


@graph
def a_function_under_vjp() -> Graph:
    x = leaf(3)
    h = x.sin()
    return Graph(vjp(lambda v: WithContext.apply(h) * v, torch.ones(3))[0], x, h)


@graph
def a_compiled_function() -> Graph:
    x = leaf(3)
    h = x.sin()
    step: Callable[..., Tensor] = torch.compile(WithContext.apply, backend="aot_eager")
    return Graph(step(h), x, h)


def foreach(make: Callable[[list[Tensor]], Any], changed: int | None = None) -> Callable[[], Graph]:
    """A graph with a node of C++ that shows nothing of its lists; ``changed`` is a result that it has saved."""

    def made() -> Graph:
        x = leaf(3)
        given = [x.sin(), x.cos()]
        results = make(given)
        return Graph(torch.stack([*results]), x, given[0] if changed is None else results[changed])

    return made


FOREACH: dict[str, Callable[[], Graph]] = {
    "mul": foreach(lambda given: torch._foreach_mul(given, given[::-1])),
    "div": foreach(lambda given: torch._foreach_div(given, given[::-1])),
    "exp": foreach(torch._foreach_exp, 1),
    "pow": foreach(lambda given: torch._foreach_pow(given, 2.0)),
}
GRAPHS |= {f"foreach_{name}": make for name, make in FOREACH.items()}


# what becomes of one


def freed(made: Graph) -> Calls:
    yield made.out.sum(), {}
    yield made.out.sum(), {}


def retained(made: Graph) -> Calls:
    yield made.out.sum(), {"retain_graph": True}
    yield made.out.sum(), {}
    yield made.out.sum(), {}


def stale(made: Graph) -> Calls:
    with torch.no_grad():
        made.saved.add_(1)
    yield made.out.sum(), {}


def changed_by_an_operator(made: Graph) -> Calls:
    with torch.no_grad():
        operator("add_one")(made.saved)
    yield made.out.sum(), {}


def run_in_part(made: Graph) -> Calls:
    yield made.out.sum(), {"inputs": [made.leaf]}
    yield made.out.sum(), {"inputs": [made.leaf]}


def differentiated_twice(made: Graph) -> Calls:
    (gradient,) = torch.autograd.grad(made.out.sum(), made.leaf, create_graph=True)
    yield gradient.pow(2).sum(), {}
    yield made.out.sum(), {}


LIVES = (freed, retained, stale, changed_by_an_operator, run_in_part, differentiated_twice)


def _program(name: str, life: Callable[[Graph], Calls]) -> Callable[[], Calls]:
    def calls() -> Calls:
        yield from life(GRAPHS[name]())

    calls.__name__ = f"{name}-{life.__name__}"
    return calls


LARGE = ("an_operator", "an_operator_of_two_results", "Plain", "foreach_mul", "foreach_exp")
"""Of these, all that can become of them; of others, how they end."""
PROGRAMS = {
    name: [_program(name, each) for each in (LIVES if name in LARGE else (freed, stale))]
    for name in GRAPHS
}

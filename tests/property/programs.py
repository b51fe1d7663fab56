"""Random autograd programs: plain data that can be drawn, printed and replayed, and the machine that runs them.

``python -m tests.property.programs 17`` draws program 17 and runs it, with a list of steps as a failing test printed
it runs that one, and with ``--stats 2000`` tells how often each step and each error occurs.
"""

from __future__ import annotations

import ast
import hashlib
import random
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.property.operations import FORWARD as BARE
from tests.property.operations import IN_PLACE, Operation
from tests.property.surroundings import SURROUNDINGS, doubled
from tests.property.tensor_classes import calls as seen_by_classes

Step = tuple[str, int, int, int]
"""
``(name, a, b, k)``: the numbers choose among whatever the pool holds when the step is run, newest first.

``thread:`` before the name runs the step in a new thread, ``worker:`` in one that lives as long as the program.
"""

Program = list[Step]

SECOND_TIME = "Trying to backward through the graph a second time"
IN_PLACE_ERRORS = (
    "modified by an inplace operation",
    "a saved tensor that has been detached in-place",
    "and its base or another view of its base has been modified inplace",
)

FORWARD = BARE | SURROUNDINGS
BACKWARD = (
    "backward",
    "backward_retain",
    "backward_create",
    "backward_inputs",
    "backward_several",
    "backward_twice",
    "two_threads",
)
GRAD = ("grad", "grad_retain", "grad_create", "grad_several", "grad_strict", "grad_of_grad")
OTHER = (
    "retain_grad",
    "hook",
    "leaf_hook",
    "del",
    "take_grad",
    "zero_grad",
    "sgd",
    "requires_grad_",
)

MAX_ELEMENTS = 48


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one step did: the steps are told apart by ``number``; ``error`` is the exception's type and text."""

    number: int
    text: str
    is_backward: bool
    error: str | None
    digest: str
    seen: tuple[str, ...] = ()
    """What the program's tensor subclasses and modes were called for."""

    @property
    def second_time(self) -> bool:
        return self.error is not None and SECOND_TIME in self.error

    @property
    def in_place(self) -> bool:
        return self.error is not None and any(text in self.error for text in IN_PLACE_ERRORS)


def build(choose: Callable[[int], int]) -> Program:
    """Draw a program; ``choose(n)`` yields a number below n."""
    bare, surroundings, in_place = list(BARE), list(SURROUNDINGS), list(IN_PLACE)
    program: Program = []
    for _ in range(4 + choose(21)):
        kind = choose(100)
        if kind < 36:
            name = bare[choose(len(bare))]
        elif kind < 55:
            name = surroundings[choose(len(surroundings))]
        elif kind < 67:
            name = BACKWARD[choose(len(BACKWARD))]
        elif kind < 75:
            name = GRAD[choose(len(GRAD))]
        elif kind < 88:
            name = in_place[choose(len(in_place))]
        else:
            name = OTHER[choose(len(OTHER))]
        where = {0: "thread:", 1: "worker:"}.get(choose(24), "")
        # Known limit: where several threads build nodes, it is not always told what a foreach node's list has saved.
        where = "" if "foreach" in name else where
        program.append((where + name, choose(12), choose(12), choose(8)))
    program.append(("backward", 0, 0, 0))
    return program


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Hypothesis strategy for programs."""
    return build(lambda n: draw(st.integers(0, n - 1)))


def random_program(seed: int) -> Program:
    """Program number ``seed``, the same on every machine."""
    return build(random.Random(seed).randrange)


def digest(tensors: Sequence[Tensor | None]) -> str:
    """Shapes and bytes of all tensors in a few characters; equal only for results that are equal bit for bit."""
    state = hashlib.blake2b(digest_size=6)
    for tensor in tensors:
        if tensor is not None:
            tensor = tensor.detach().as_subclass(Tensor)
            state.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            state.update(tensor.contiguous().numpy(force=True).tobytes())
    return state.hexdigest()


def threaded(work: Callable[[], str]) -> str:
    """Run a step in a new thread, and pass on what it returns or raises."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def two_threads(values: Tensor, k: int) -> None:
    """Two threads at once, each with its graph; in one of them, for some k, the engine raises."""
    start = threading.Barrier(2)
    plain = values.detach().as_subclass(Tensor)

    def work(which: int) -> None:
        leaf = (plain + which).requires_grad_()
        start.wait(10)
        for _ in range(3):
            loss = (leaf.exp() * leaf.sigmoid()).sum()
            loss.backward()
        if which == 1 and k % 4 == 0:
            loss.backward()

    with ThreadPoolExecutor(2) as pool:
        ran = [pool.submit(work, which) for which in (0, 1)]
    for one in ran:
        one.result()


@dataclass
class Machine:
    """Runs steps on a pool of tiny tensors; what torch refuses is part of the outcome."""

    leaves: list[Tensor] = field(default_factory=list)
    pool: list[Tensor] = field(default_factory=list)
    worker: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 1))

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        for shape in ((3, 3), (3, 3), (3,), (2, 2, 2)):
            self.leaves.append((torch.randn(shape) * 0.5).requires_grad_())
        self.pool = [torch.randn(3, 3), *self.leaves]
        self.pool.append(self.leaves[0] * self.leaves[1])

    def step(self, number: int, step: Step) -> Outcome:
        where, _, name = step[0].rpartition(":")
        text, error, results = f"{step[0]} skipped", None, list[Tensor | None]()
        work = partial(self.work, name, *step[1:], results)
        seen_by_classes.clear()
        try:
            if where == "thread":
                text = threaded(work)
            elif where == "worker":
                text = self.worker.submit(work).result()
            else:
                text = work()
        except Exception as refused:
            error = f"{type(refused).__name__}: {refused}"
        seen = digest([*results, *(leaf.grad for leaf in self.leaves)])
        is_backward = name in BACKWARD or name in GRAD
        return Outcome(number, text, is_backward, error, seen, tuple(seen_by_classes))

    def work(self, name: str, a: int, b: int, k: int, results: list[Tensor | None]) -> str:
        if name in FORWARD:
            return self.forward(name, FORWARD[name], a, b, k, results)
        if name in IN_PLACE:
            return self.in_place(name, IN_PLACE[name], a, b, k)
        if name in BACKWARD:
            self.backward(name, a, b, k)
        elif name in GRAD:
            self.grad(name, a, b, k, results)
        else:
            return self.other(name, a, b)
        return f"{name}({a}, {b}, {k})"

    def pick(self, number: int, candidates: Sequence[Tensor]) -> Tensor:
        return candidates[-1 - number % len(candidates)]

    def forward(
        self, name: str, operation: Operation, a: int, b: int, k: int, results: list[Tensor | None]
    ) -> str:
        candidates = [x for x in self.pool if operation.needs(x)]
        if not candidates:
            return f"{name} skipped"
        x = self.pick(a, candidates)
        y = self.pick(b, [other for other in self.pool if other.shape == x.shape])
        out = operation.apply(x, y, k)
        outputs = [out] if isinstance(out, Tensor) else list(out)
        results.extend(outputs)
        self.pool.extend(t for t in outputs if t.numel() <= MAX_ELEMENTS)
        return f"{name}({tuple(x.shape)}) -> {[tuple(t.shape) for t in outputs]}"

    def in_place(self, name: str, operation: Operation, a: int, b: int, k: int) -> str:
        candidates = [x for x in self.pool if operation.needs(x)]
        if not candidates:
            return f"{name} skipped"
        x = self.pick(a, candidates)
        y = self.pick(b, [other for other in self.pool if other.shape == x.shape])
        if x.is_leaf and x.requires_grad and k < 6:
            k = 6
        if k == 7:
            operation.apply(x.data, y.detach(), k)
        elif k == 6:
            with torch.no_grad():
                operation.apply(x, y, k)
        elif k == 5:
            operation.apply(x.detach(), y.detach(), k)
        else:
            operation.apply(x, y, k)
        way = {5: " through detach()", 6: " under no_grad", 7: " through .data"}.get(k, "")
        return f"{name}({tuple(x.shape)}){way}"

    def roots(self) -> list[Tensor]:
        try:
            return [x for x in self.pool if x.requires_grad and not x.is_leaf]
        except RuntimeError as refused:  # a view, before anything was asked of its graph
            raise TypeError("torch refuses to say whether a view is a leaf") from refused

    def backward(self, name: str, a: int, b: int, k: int) -> None:
        roots = self.roots()
        if not roots:
            return
        root = self.pick(a, roots)
        weight = torch.ones_like(root)
        if name == "backward_several":
            other = self.pick(b, roots)
            torch.autograd.backward(
                [root, other], [weight, torch.ones_like(other)], retain_graph=k % 2 == 0
            )
        elif name == "backward_twice":
            root.backward(weight, retain_graph=k % 2 == 0)
            root.backward(weight)
        elif name == "two_threads":
            two_threads(root.detach(), k)
        elif name == "backward_inputs":
            wanted = [x for x in self.pool if x.requires_grad]
            root.backward(
                weight, retain_graph=k % 3 == 0, inputs=[self.pick(b, wanted), self.leaves[k % 3]]
            )
        else:
            root.backward(
                weight,
                retain_graph=name == "backward_retain" or None,
                create_graph=name == "backward_create",
            )

    def grad(self, name: str, a: int, b: int, k: int, results: list[Tensor | None]) -> None:
        roots = self.roots()
        if not roots:
            return
        chosen = [self.pick(a, roots)]
        if name == "grad_of_grad":
            self.grad_of_grad(chosen[0], b, k, results)
            return
        if name == "grad_several":
            chosen.append(self.pick(k, roots))
        wanted = [x for x in self.pool if x.requires_grad]
        inputs = [self.pick(b, wanted)]
        if name != "grad_strict":
            inputs.append(self.leaves[k % len(self.leaves)])
        gradients = torch.autograd.grad(
            chosen,
            inputs,
            [torch.ones_like(x) for x in chosen],
            retain_graph=name == "grad_retain" or None,
            create_graph=name == "grad_create",
            allow_unused=name != "grad_strict",
        )
        results.extend(gradients)
        # An input's gradient may be the very tensor of ones given above or one that another holds: a copy keeps
        # later accumulation, which happens inside a backward call, from changing what a graph of the test has saved.
        self.pool.extend(
            g.clone() for g in gradients if g is not None and g.numel() <= MAX_ELEMENTS
        )

    def grad_of_grad(self, root: Tensor, b: int, k: int, results: list[Tensor | None]) -> None:
        """A gradient with a graph, and the gradient of that, which is run backward into the leaves."""
        leaves = self.leaves[: 1 + b % 3]
        first = torch.autograd.grad(root.sum(), leaves, create_graph=True, allow_unused=True)
        loss = sum((g.pow(2).sum() for g in first if g is not None), torch.zeros(()))
        results.append(loss)
        if loss.requires_grad:
            results.extend(
                torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=k % 2 == 0)
            )
            if k == 0:
                loss.backward()

    def other(self, name: str, a: int, b: int) -> str:
        x, leaf = self.pick(a, self.pool), self.pick(a, self.leaves)
        if name == "retain_grad" and x.requires_grad:
            x.retain_grad()
        elif name == "hook" and x.requires_grad and not (x._is_view() and x._version):
            # torch itself may crash where it hooks a view whose base was modified (seen with 2.13)
            x.register_hook(doubled)
        elif name == "leaf_hook":
            leaf.register_post_accumulate_grad_hook(lambda p: None)
        elif name == "del" and len(self.pool) > 1:
            self.pool.pop(-1 - a % len(self.pool))
        elif name == "take_grad" and leaf.grad is not None:
            self.pool.append(leaf.grad.clone())
        elif name == "zero_grad":
            leaf.grad = None
        elif name == "sgd":
            with torch.no_grad():
                for parameter in self.leaves[: 1 + b % 4]:
                    if parameter.grad is not None:
                        parameter.add_(parameter.grad, alpha=-0.1)
        elif name == "requires_grad_" and x.is_leaf:
            x.requires_grad_()
        return f"{name}({a})"

    def close(self) -> None:
        """End the thread; break the cycles that ``backward(create_graph=True)`` makes through ``.grad``."""
        self.worker.shutdown()
        for leaf in self.leaves:
            leaf.grad = None


def run(
    program: Program, around: Callable[[Callable[[], Outcome]], Outcome] | None = None
) -> list[Outcome]:
    """Run all steps; each backward step is handed to ``around``, which is to call it and to pass on its outcome."""
    outcomes = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        machine = Machine()
        for number, step in enumerate(program):
            if around is not None and step[0].rpartition(":")[2] in (*BACKWARD, *GRAD):
                outcomes.append(around(partial(machine.step, number, step)))
            else:
                outcomes.append(machine.step(number, step))
        outcomes.append(Outcome(len(program), "end", False, None, digest(machine.pool)))
        machine.close()
    return outcomes


def show(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        error = f"  !! {outcome.error.splitlines()[0][:150]}" if outcome.error else ""
        print(f"{outcome.number:3}  {outcome.text:50} {outcome.digest}{error}")


def show_statistics(count: int) -> None:
    steps, refused, share = Counter[str](), Counter[str](), Counter[str]()
    for seed in range(count):
        program = random_program(seed)
        outcomes = run(program)
        steps.update(name.rpartition(":")[2] for name, *_ in program)
        refused.update(
            step[0].rpartition(":")[2]
            for step, outcome in zip(program, outcomes, strict=False)
            if outcome.error
        )
        kinds = {(o.second_time, o.in_place, o.is_backward) for o in outcomes if o.error}
        share["second time"] += any(second for second, _, _ in kinds)
        share["in place"] += any(stale for _, stale, _ in kinds)
        share["another error in a backward"] += (False, False, True) in kinds
        share["another error elsewhere"] += (False, False, False) in kinds
        share["no error in a backward"] += not any(backward for _, _, backward in kinds)
    for kind, number in share.items():
        print(f"{kind:30} {100 * number / count:5.1f} % of programs")
    for name, number in steps.most_common():
        print(f"{name:22} {number:6} steps {refused[name]:6} refused")


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--stats"]:
        show_statistics(int(arguments[1]))
        return
    program = (
        random_program(int(arguments[0]))
        if arguments[0].isdigit()
        else ast.literal_eval(arguments[0])
    )
    print(program)
    show(run(program))


if __name__ == "__main__":
    main(sys.argv[1:])

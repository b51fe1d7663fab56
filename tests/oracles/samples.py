"""Makes programs of torch's own samples: of its operators, modules and optimizers."""

from __future__ import annotations

import contextlib
import random
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

SEED = 7
OF_EACH = 1
"""So many samples of each variant."""
_STATE: list[torch.Tensor] = []


@dataclass
class Built:
    """What one run of a program has made: leaves that need a gradient, what it was given, results."""

    leaves: list[torch.Tensor]
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    step: Callable[[], object] | None = None
    """Steps an optimizer once more."""


@dataclass(frozen=True)
class Sample:
    """A program that can be run any number of times, and gives the same each time."""

    name: str
    variant: str
    run: Callable[[], Built]

    def build(self) -> Built:
        """Run it, from the same random state each time."""
        seed()
        return self.run()


def seed() -> None:
    """Begin all random numbers anew."""
    import numpy

    random.seed(SEED)
    numpy.random.seed(SEED)
    if not _STATE:
        torch.manual_seed(SEED)
        _STATE.append(torch.get_rng_state())
    torch.set_rng_state(_STATE[0])  # takes a tenth of the time


def differentiable(tensors: Sequence[Any]) -> list[torch.Tensor]:
    """Return the tensors that have a graph, each once."""
    found = {id(one): one for one in tensors if isinstance(one, torch.Tensor)}
    return [one for one in found.values() if one.requires_grad and not one.is_leaf]


def fresh(values: Any, leaves: list[torch.Tensor], computed: bool) -> Any:
    """Return copies; add those that need a gradient to ``leaves``, and go on with a clone of them."""
    known: dict[int, torch.Tensor] = {}

    def copied(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in known:
            copy = value.detach().clone()
            if value.requires_grad:
                leaves.append(copy.requires_grad_())
                copy = copy.clone() if computed else copy
            known[id(value)] = copy
        return known[id(value)]

    return tree_map(copied, values)


def run_operator(
    function: Callable[..., Any], sample: Any, computed: bool, is_method: bool
) -> Built:
    """Call an operator with copies of a sample's arguments."""
    leaves: list[torch.Tensor] = []
    given, args, kwargs = fresh(
        (sample.input, tuple(sample.args), dict(sample.kwargs)), leaves, computed
    )
    result = function(given, *args, **kwargs)
    process = getattr(sample, "output_process_fn_grad", None)
    if process is not None and not is_method:
        result = process(result)
    inputs = [
        one for one in tree_flatten((given, args, kwargs))[0] if isinstance(one, torch.Tensor)
    ]
    results = tree_flatten(given if result is None else result)[0]
    return Built(leaves, list({id(one): one for one in inputs}.values()), differentiable(results))


def some(samples: Sequence[Any], most: int = 1) -> list[tuple[int, Any]]:
    """Return a few samples with their numbers, evenly spread: of one, it is that in the middle."""
    few = min(len(samples), most * OF_EACH)
    places = ((2 * n + 1) * len(samples) // (2 * few) for n in range(few))
    return [(i, samples[i]) for i in places]


def of_operator(info: Any) -> Iterator[Sample]:
    """Yield the programs of one operator: function, method, in place, complex, sparse."""
    if not info.supports_autograd:
        return
    kind = torch.float64 if info.supports_dtype(torch.float64, "cpu") else torch.float32
    variants: list[tuple[str, Any, torch.dtype, str]] = [
        ("function", info.op, kind, "sample_inputs"),
        ("method", info.method_variant, kind, "sample_inputs"),
    ]
    if info.supports_inplace_autograd:
        variants.append(("in place", info.inplace_variant, kind, "sample_inputs"))
    if torch.complex128 in info.supported_backward_dtypes("cpu"):
        variants.append(("complex", info.op, torch.complex128, "sample_inputs"))
    variants += [
        (f"sparse {layout}", info.op, kind, f"sample_inputs_sparse_{layout}")
        for layout in ("coo", "csr")
        if getattr(info, "supports_sparse" if layout == "coo" else "supports_sparse_csr", False)
    ]
    for variant, function, dtype, source in variants:
        if function is None or not info.supports_dtype(dtype, "cpu"):
            continue
        seed()
        in_place = variant == "in place"
        usable = _samples(info, source, dtype)
        if in_place:
            usable = [
                one for one in usable if not one.broadcasts_input and _needs_gradient(one.input)
            ]
        for number, sample in some(usable):
            run = partial(run_operator, function, sample, in_place or bool(number % 2), in_place)
            yield Sample(f"{variant} {number}", variant, run)


def _samples(info: Any, source: str, dtype: torch.dtype) -> list[Any]:
    with contextlib.suppress(
        Exception
    ):  # torch lists operators whose sparse samples it cannot make
        return list(getattr(info, source)("cpu", dtype, requires_grad=True))
    return []


def _needs_gradient(value: Any) -> bool:
    tensors = tree_flatten(value)[0]
    return bool(tensors) and all(
        isinstance(one, torch.Tensor) and one.requires_grad for one in tensors
    )


def of_foreach(info: Any) -> Iterator[Sample]:
    """Yield the programs of one operation on lists of tensors."""
    for variant, function in (
        ("foreach", info.method_variant),
        ("foreach in place", info.inplace_variant),
    ):
        in_place = variant != "foreach"
        if function is None or not (
            info.supports_inplace_autograd if in_place else info.supports_autograd
        ):
            continue
        seed()
        samples = list(
            info.sample_inputs("cpu", torch.float64, requires_grad=True, num_input_tensors=[3])
        )
        for number, sample in some(samples):
            run = partial(run_operator, function, sample, in_place or bool(number % 2), in_place)
            yield Sample(f"{variant} {number}", variant, run)


def of_module(info: Any) -> Iterator[Sample]:
    """Yield the programs of one module: a call in training, and one in evaluation."""
    for training in (True, False) if info.train_and_eval_differ else (True,):
        seed()
        given = list(
            info.module_inputs_func(
                info, device="cpu", dtype=torch.float64, requires_grad=True, training=training
            )
        )
        variant = "training" if training else "evaluation"
        for number, one in some([g for g in given if g.forward_input is not None]):
            yield Sample(
                f"{variant} {number}", variant, partial(run_module, info.module_cls, one, training)
            )


def run_module(kind: type, given: Any, training: bool) -> Built:
    """Make a module, and call it."""
    made = given.constructor_input
    module = kind(*deepcopy(made.args), **deepcopy(made.kwargs)).to(torch.float64)
    module.train(training)
    leaves: list[torch.Tensor] = []
    args, kwargs = fresh(
        (tuple(given.forward_input.args), dict(given.forward_input.kwargs)), leaves, False
    )
    inputs = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor)]
    result = module(*args, **kwargs)
    outputs = tree_flatten(result)[0]
    own = [one for one in module.parameters() if one.requires_grad]
    return Built([*leaves, *own], [*inputs, *own], differentiable(outputs))


def of_optimizer(info: Any) -> Iterator[Sample]:
    """Yield the programs of one optimizer: two steps on a small net, and a loss of the weights after."""
    ways: list[dict[str, Any]] = [{}] + [
        {way: True} for way in info.supported_impls if way == "foreach"
    ]
    seed()
    given = list(info.optim_inputs_func(device="cpu"))
    for number, one in some(given, 3):
        for way in ways if not {"foreach", "differentiable", "fused"} & set(one.kwargs) else ({},):
            name = f"{one.desc or 'default'}{' foreach' if way else ''} {number}"
            sparse = info.only_supports_sparse_grads
            variant = "foreach" if way else "steps"
            yield Sample(
                name, variant, partial(run_optimizer, info.optim_cls, one.kwargs | way, sparse)
            )


class Net(torch.nn.Module):
    """Two layers, the first with gradients that can be sparse."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.first = torch.nn.Embedding(5, 4, sparse=sparse)
        self.second = torch.nn.Linear(4, 3, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(self.first(rows).tanh()).square()
        return result


def run_optimizer(kind: Any, kwargs: dict[str, Any], sparse: bool) -> Built:
    """Train for two steps; the result is a loss computed after, whose net may be stepped again."""
    net = Net(sparse).double()
    rows = torch.tensor([0, 2, 3])
    trained = [net.first.weight] if sparse else [*net.parameters()]
    if kind.__name__ == "Muon":
        trained = [net.second.weight]
    optimizer = kind(trained, **deepcopy(kwargs))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = net(rows).mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    optimizer.step(closure)
    result = net(rows)
    return Built(
        [*net.parameters()], [*net.parameters()], [result], partial(optimizer.step, closure)
    )


def entries() -> dict[str, Callable[[], Iterator[Sample]]]:
    """Return all that torch has samples of, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_methods_invocations as operators
        from torch.testing._internal.common_modules import module_db
        from torch.testing._internal.common_optimizers import optim_db
    lists = (
        *operators.foreach_unary_op_db,
        *operators.foreach_binary_op_db,
        *operators.foreach_pointwise_op_db,
        *operators.foreach_reduce_op_db,
        *operators.foreach_other_op_db,
    )
    return {
        **{f"operator {info.full_name}": partial(of_operator, info) for info in operators.op_db},
        **{f"foreach {info.full_name}": partial(of_foreach, info) for info in lists},
        **{f"module {info.formatted_name}": partial(of_module, info) for info in module_db},
        **{f"optimizer {info.name}": partial(of_optimizer, info) for info in optim_db},
    }


class TooSlowError(Exception):
    """A sample has taken too long."""


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    """Raise TooSlowError in what takes longer."""

    def stop(number: int, frame: object) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)

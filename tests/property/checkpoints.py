"""Random functions under checkpoints of both kinds, run plain, watched, and without a checkpoint."""

# mypy: allow-untyped-calls
# Part of torch is untyped.
from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import (
    CheckpointError,
    checkpoint,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

import gradscope
from gradscope.model import Finding

SELECTED = partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])
DRAWS = {"dropout", "noise", "rows", "python_branch", "python_scale", "numpy_scale"}
"""Operations that draw random numbers; those of Python and NumPy no checkpoint draws again."""


class Block(nn.Module):
    """What the operations read and change."""

    is_half = is_plain = False

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = names
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.norm, self.calls = nn.BatchNorm1d(8), 0
        self.cache: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        for i, name in enumerate(self.names):
            x = OPERATIONS[name](self, x, self.layers[i % 3])
        return x

    def within(self, layer: nn.Module, x: Tensor, *, use_reentrant: bool) -> Tensor:
        if self.is_plain:
            return F.gelu(layer(x))
        out: Tensor = checkpoint(lambda x: F.gelu(layer(x)), x, use_reentrant=use_reentrant)
        return out


def cached(block: Block, x: Tensor, layer: nn.Module) -> Tensor:
    if block.cache is None:
        block.cache = layer(torch.ones(1, 8)).tanh()
    return x * block.cache


def counted(block: Block, x: Tensor, layer: nn.Module) -> Tensor:
    block.calls += 1
    return x


def half(block: Block, x: Tensor, layer: nn.Module) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled=block.is_half):
        out: Tensor = layer(x)
    return out.float()


OPERATIONS: dict[str, Callable[[Block, Tensor, nn.Module], Tensor]] = {
    "layer": lambda block, x, layer: layer(x),
    "tanh": lambda block, x, layer: x.tanh(),
    "gelu": lambda block, x, layer: F.gelu(layer(x)),
    "layer_norm": lambda block, x, layer: F.layer_norm(x, (8,)),
    "square": lambda block, x, layer: x * x,
    "order": lambda block, x, layer: x[x.detach().sum(1).argsort()],
    "in_place": lambda block, x, layer: layer(x).mul_(0.5).relu_(),
    "attention": lambda block, x, layer: F.scaled_dot_product_attention(
        x[None], layer(x)[None], x[None]
    )[0],
    "norm": lambda block, x, layer: block.norm(x),
    "count": counted,
    "dropout": lambda block, x, layer: F.dropout(x, 0.5, block.training),
    "noise": lambda block, x, layer: x * torch.rand_like(x),
    "rows": lambda block, x, layer: torch.cat([x[:2], x[torch.rand(len(x)) < 0.6]]),
    "python_branch": lambda block, x, layer: layer(x).tanh() if random.random() < 0.5 else x,
    "python_scale": lambda block, x, layer: x * torch.full((1, 8), random.random()),
    "numpy_scale": lambda block, x, layer: x * torch.full((1, 8), float(np.random.rand())),
    "count_branch": lambda block, x, layer: x.tanh() if block.calls % 2 else layer(x),
    "count_scale": lambda block, x, layer: x * (2 + block.calls),
    "cache": cached,
    "half": half,
    "nested": lambda block, x, layer: block.within(layer, x, use_reentrant=False),
    "nested_reentrant": lambda block, x, layer: block.within(layer, x, use_reentrant=True),
}


def step(block: Block) -> None:
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.add_(0.1)


BETWEEN: dict[str, Callable[[Block], object]] = {
    "nothing": lambda block: None,
    "evaluate": lambda block: block.eval(),
    "half": lambda block: setattr(block, "is_half", not block.is_half),
    "step": step,
    "draw": lambda block: (torch.rand(3), random.random(), np.random.rand()),
    "pass": lambda block: block.norm(torch.randn(4, 8)),
}
"""What comes between the forward pass and the backward call."""


class Options(NamedTuple):
    """How a checkpoint is called."""

    reentrant: bool = False
    preserves: bool = True
    stops: bool = True
    selects: bool = False
    twice: bool = False


class Outcome(NamedTuple):
    """What a run has left behind."""

    error: str
    is_of_checkpoint: bool
    gradients: list[bytes]
    state: list[Any]


def as_bytes(tensor: Tensor | None) -> bytes:
    return b"" if tensor is None else tensor.detach().numpy().tobytes()


def alike(one: bytes, other: bytes) -> bool:
    """Return whether gradients are the same, but for the order in which they were added up."""
    if len(one) != len(other):
        return False
    first, second = (np.frombuffer(each, dtype=np.float32) for each in (one, other))
    return np.allclose(first, second, rtol=1e-4, atol=1e-6)


def run(names: Sequence[str], between: str, options: Options, *, plain: bool = False) -> Outcome:
    """Run a function under a checkpoint, or ``plain``, and go backward."""
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    block, error, of_checkpoint = Block(names), "", False
    block.is_plain = plain
    x = torch.randn(6, 8, requires_grad=True)
    given: dict[str, Any] = {
        "use_reentrant": options.reentrant,
        "preserve_rng_state": options.preserves,
    }
    if not options.reentrant:
        given |= {"context_fn": SELECTED} if options.selects else {}
    try:
        with set_checkpoint_early_stop(options.stops):
            copies = saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t)
            with copies if plain else nullcontext():
                y = block(x) if plain else checkpoint(block, x, **given)
            BETWEEN[between](block)
            loss = y.square().mean()
            for retain in (True, False) if options.twice else (False,):
                loss.backward(retain_graph=retain)
    except (RuntimeError, ValueError) as raised:
        error = f"{type(raised).__name__}: {raised}"
        mine = ("Mismatch in shape", "changed between")
        of_checkpoint = isinstance(raised, CheckpointError) or any(text in error for text in mine)
    leaves = (x, *block.parameters())
    state: list[Any] = [
        torch.get_rng_state().tolist(),
        random.getstate(),
        str(np.random.get_state()),
    ]
    state += [block.calls, *map(as_bytes, block.buffers())]
    return Outcome(error, of_checkpoint, [as_bytes(leaf.grad) for leaf in leaves], state)


def faults(names: Sequence[str], between: str, options: Options) -> list[str]:
    """Return what a watch changes or says wrongly."""
    plain, right = run(names, between, options), run(names, between, options, plain=True)
    with gradscope.watch() as scope:
        watched = run(names, between, options)
    found = [each for each in scope.findings if each.code == "GS601"]
    wrong = [note for note in scope.recording().summary.notes if "please report" in note]
    wrong += [f"missed: {each.message}" for each in scope.findings if each.missed]
    if watched != plain:
        wrong.append(f"the watch changes the run: {watched.error} instead of {plain.error}")
    said = {each.severity.value for each in found}
    if plain.error:
        is_told = "error" in said or not plain.is_of_checkpoint  # whatever raises before torch does
        return wrong if is_told else [*wrong, f"said {said} of {plain.error}"]
    differ = not all(map(alike, plain.gradients, right.gradients))
    if said != ({"warning"} if differ else set()) and not is_excused(
        names, between, options, found
    ):
        wrong.append(f"said {said} where gradients {'differ' if differ else 'are right'}")
    return wrong


def is_excused(
    names: Sequence[str], between: str, options: Options, found: Sequence[Finding]
) -> bool:
    """Of a reentrant checkpoint it is known only that it draws, or that parameters have changed."""
    if not options.reentrant:
        return False
    return not found or bool(DRAWS.intersection(names)) or between == "step"

"""Operations in what programs put around them: checkpoints, hooks, subclasses, gradients of gradients."""

# mypy: allow-untyped-calls
# Part of torch is untyped.
from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name
from torch import Tensor
from torch.autograd.graph import (
    disable_saved_tensors_hooks,
    register_multi_grad_hook,
    save_on_cpu,
    saved_tensors_hooks,
)
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from tests.needs import DETACHED_IS_TOLD, SELECTS_CHECKPOINTS, has, pads
from tests.property import functions, tensor_classes
from tests.property.operations import (
    Operation,
    anything,
    custom,
    has_dimensions,
    mixed,
)

Bodies = tuple[Callable[[Tensor, Tensor], Tensor], ...]

BODIES: Bodies = (
    lambda x, y: x * y + x.exp(),
    lambda x, y: custom(functions.SaveInput, 0.5)(x) * y,
    lambda x, y: custom(functions.SaveOutput)(x * y),
    lambda x, y: sum(custom(functions.TwoOutputs)(x, y.tanh())),
    lambda x, y: custom(functions.SeparateContext)(x.sin(), custom(functions.SaveOutput)(y)),
    lambda x, y: F.dropout(x * y, 0.5),
    lambda x, y: custom(functions.KeepOnContext)(x) + custom(functions.SaveIntermediate)(y),
    lambda x, y: checkpoint(mixed, x, use_reentrant=False) * y,
)


def checkpointed(x: Tensor, y: Tensor, k: int) -> Tensor:
    """Each body under a non-reentrant checkpoint, every other one with the state of the random numbers."""
    with set_checkpoint_early_stop(k % 3 != 1):
        out: Tensor = checkpoint(
            BODIES[k % len(BODIES)], x, y, use_reentrant=False, preserve_rng_state=k % 2 == 1
        )
    return out


def checkpointed_reentrant(x: Tensor, y: Tensor, k: int) -> Tensor:
    out: Tensor = checkpoint(BODIES[k % len(BODIES)], x, y, use_reentrant=True)
    return out


def checkpoints_nested(x: Tensor, y: Tensor, k: int) -> Tensor:
    inner, outer = k % 2 == 0, k % 4 == 3

    def around(x: Tensor, y: Tensor) -> Tensor:
        within: Tensor = checkpoint(BODIES[k % len(BODIES)], x.tanh(), y, use_reentrant=inner)
        return within * x

    out: Tensor = checkpoint(around, x, y, use_reentrant=outer)
    return out


def checkpoint_selective(x: Tensor, y: Tensor, k: int) -> Tensor:
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        save = op is torch.ops.aten.mul.Tensor
        return CheckpointPolicy.MUST_SAVE if save else CheckpointPolicy.PREFER_RECOMPUTE

    out: Tensor = checkpoint(
        lambda x, y: x * y + (x * 2).exp(),
        *(x, y),
        use_reentrant=False,
        context_fn=lambda: create_selective_checkpoint_contexts(policy),
    )
    return out


def checkpoint_under_hooks(x: Tensor, y: Tensor, k: int) -> Tensor:
    with saved_tensors_hooks(lambda t: t.detach() * 2, lambda t: t / 2):
        return checkpointed(x, y, k)


def hooks_in_checkpoint(x: Tensor, y: Tensor, k: int) -> Tensor:
    out: Tensor = checkpoint(computing_hooks, x, y, k, use_reentrant=False)
    return out


def computing_hooks(x: Tensor, y: Tensor, k: int) -> Tensor:
    """The program's own pair computes: without and with a graph of its own, as numbers, or in the unpack hook only."""
    pairs: tuple[tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]], ...] = (
        (lambda t: t.detach() * 2, lambda t: t / 2),
        (lambda t: (t.shape, t.detach().flatten().tolist()), from_numbers),
        (lambda t: t.detach().clone(), through_a_graph),
        (lambda t: t.detach(), lambda t: mixed(t.requires_grad_()).detach() * 0 + t.detach()),
        (lambda t: t, lambda t: t),
    )
    with saved_tensors_hooks(*pairs[k % len(pairs)]):
        return x * y + x.tanh()


def from_numbers(packed: tuple[torch.Size, list[Any]]) -> Tensor:
    shape, numbers = packed
    return torch.tensor(numbers).reshape(shape)


def through_a_graph(saved: Tensor) -> Tensor:
    """Unpacking runs a backward call."""
    if not saved.is_floating_point():
        return saved
    one = torch.ones_like(saved, requires_grad=True)
    (gradient,) = torch.autograd.grad(custom(functions.SaveInput, 0.5)(one).sum(), one)
    return saved * gradient


def hooks_in_hooks(x: Tensor, y: Tensor, k: int) -> Tensor:
    with ExitStack() as stack:
        stack.enter_context(saved_tensors_hooks(lambda t: t.detach() * 4, lambda t: t / 4))
        middle = x.exp()
        stack.enter_context(save_on_cpu() if k % 2 else saved_tensors_hooks(lambda t: t, mixed))
        return middle * y


def hooks_disabled(x: Tensor, y: Tensor, k: int) -> Tensor:
    """Torch refuses this under the program's own hooks, and else lets it be."""
    with ExitStack() as stack:
        if k % 3 == 0:
            stack.enter_context(saved_tensors_hooks(lambda t: t, lambda t: t))
        stack.enter_context(disable_saved_tensors_hooks("not here"))
        if k % 3 == 1:
            stack.enter_context(saved_tensors_hooks(lambda t: t, lambda t: t))
        return x * y.sigmoid()


def hook_that_raises(x: Tensor, y: Tensor, k: int) -> Tensor:
    def refuse(t: Any) -> Any:
        raise ValueError("not this one")

    with saved_tensors_hooks(lambda t: t, refuse) if k % 2 else saved_tensors_hooks(refuse, mixed):
        return x * y


def doubled(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else gradient * 2


def node_hooks(x: Tensor, y: Tensor, k: int) -> Tensor:
    out = x.exp() * y
    node: Any = out.grad_fn
    if node is None:
        return out
    if k % 3 == 0:
        node.register_hook(lambda inputs, outputs: tuple(map(doubled, inputs)))
    elif k % 3 == 1:
        node.register_prehook(lambda outputs: tuple(g if g is None else g + 1 for g in outputs))
    else:
        node.metadata["note"] = [1]
    return out


def saved_tensor_hooks_of_one(x: Tensor, y: Tensor, k: int) -> Tensor:
    """Hooks on one saved tensor of a node, as ``SavedTensor.register_hooks`` puts them."""
    out = x * y
    if out.grad_fn is None:
        return out
    saved: Any = out.grad_fn._raw_saved_self  # type: ignore[attr-defined]
    saved.register_hooks(lambda t: t.detach() * 2, lambda t: t / 2)
    if k == 3:
        saved.register_hooks(lambda t: t, lambda t: t)  # which torch refuses
    return out


def multi_grad_hook(x: Tensor, y: Tensor, k: int) -> Tensor:
    # torch itself may crash where it hooks a view whose base was modified (seen with 2.13)
    wanted = [t for t in (x, y) if t.requires_grad and not t._is_view()]
    if wanted:
        register_multi_grad_hook(wanted, lambda grads: None, mode="any" if k % 2 else "all")
    return x * y


def backward_in_hook(x: Tensor, y: Tensor, k: int) -> Tensor:
    """A hook runs a backward call inside the one that calls it."""
    out = x.sin() * y
    if not out.requires_grad:
        return out

    def inner(gradient: Tensor | None) -> Tensor | None:
        if gradient is None:
            return None
        leaf = gradient.detach().clone().requires_grad_()
        with torch.enable_grad():
            loss = custom(functions.SaveInput, 0.5)(leaf).exp().sum()
        loss.backward(retain_graph=k % 2 == 0)
        if k == 5:
            loss.backward()  # which the engine refuses, and with it the outer call
        return leaf.grad

    out.register_hook(inner)
    return out


def raising_hook(x: Tensor, y: Tensor, k: int) -> Tensor:
    out = x.cos() * y
    if out.requires_grad:

        def refuse(gradient: Tensor | None) -> None:
            raise (ValueError, RuntimeError, KeyError)[k % 3]("in a hook of the program's")

        out.register_hook(refuse)
    return out


def penalty(x: Tensor, y: Tensor, k: int) -> Tensor:
    """A function of a gradient: what a gradient penalty or a second derivative adds to a loss."""
    bodies = (
        *BODIES[:3],
        lambda x, y: x.pow(3) * y.exp(),
        lambda x, y: F.layer_norm(x, x.shape[-1:]),
    )
    leaf = x.detach().clone().requires_grad_()
    inner = bodies[k % len(bodies)](leaf, y).sum()
    (gradient,) = torch.autograd.grad(inner, leaf, create_graph=True)
    if k == 7:
        (gradient,) = torch.autograd.grad(gradient.sum(), leaf, create_graph=True)
    return gradient * x


def func_grad(x: Tensor, y: Tensor, k: int) -> Tensor:
    """``torch.func``, which takes no default hooks, on attached tensors."""
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: torch.func.grad(lambda t: (t * y).exp().sum())(x),
        lambda: torch.func.vjp(lambda t: t * t * y, x)[1](torch.ones_like(x))[0],
        lambda: torch.func.vmap(lambda t: t.exp())(x),
        lambda: torch.func.jvp(lambda t: t.sin(), (x,), (torch.ones_like(x),))[1],
    )
    out: Tensor = kinds[k % len(kinds)]()
    return out


def in_a_thread(x: Tensor, y: Tensor, k: int) -> Tensor:
    """Another thread builds the graph, every other time under hooks."""
    with ThreadPoolExecutor(1) as pool:
        body = partial(computing_hooks, k=k) if k % 2 else BODIES[k % 3]
        return pool.submit(body, x, y).result()


def abandoned(x: Tensor, y: Tensor, k: int) -> Tensor:
    """A graph that nobody keeps: it is dropped with all that it saved."""
    BODIES[k % len(BODIES)](x.exp(), y.exp())
    return x.neg()


SURROUNDINGS: dict[str, Operation] = {
    "checkpoint_bodies": Operation(anything, checkpointed),
    "checkpoint_reentrant_bodies": Operation(anything, checkpointed_reentrant),
    "checkpoints_nested": Operation(anything, checkpoints_nested),
    "checkpoint_selective": Operation(anything, checkpoint_selective),
    "checkpoint_under_hooks": Operation(anything, checkpoint_under_hooks),
    "hooks_in_checkpoint": Operation(anything, hooks_in_checkpoint),
    "computing_hooks": Operation(anything, computing_hooks),
    "hooks_in_hooks": Operation(anything, hooks_in_hooks),
    "hooks_disabled": Operation(anything, hooks_disabled),
    "hook_that_raises": Operation(anything, hook_that_raises),
    "node_hooks": Operation(anything, node_hooks),
    "saved_tensor_hooks": Operation(anything, saved_tensor_hooks_of_one),
    "multi_grad_hook": Operation(anything, multi_grad_hook),
    "backward_in_hook": Operation(anything, backward_in_hook),
    "raising_hook": Operation(anything, raising_hook),
    "penalty": Operation(has_dimensions, penalty),
    "func_grad": Operation(has_dimensions, func_grad),
    "in_a_thread": Operation(anything, in_a_thread),
    "abandoned": Operation(anything, abandoned),
    "tagged": Operation(anything, tensor_classes.tagged),
    "wrapped": Operation(anything, tensor_classes.wrapped),
    "function_mode": Operation(anything, tensor_classes.under_function_mode),
    "dispatch_mode": Operation(anything, tensor_classes.under_dispatch_mode),
    "nested_strided": Operation(has_dimensions, tensor_classes.nested_strided),
    "nested_jagged": Operation(has_dimensions, tensor_classes.nested_jagged),
}
for name, needed in {
    "checkpoint_selective": SELECTS_CHECKPOINTS,
    "saved_tensor_hooks": DETACHED_IS_TOLD,  # under ours, torch refuses other hooks on a SavedTensor
}.items():
    if not has(needed):
        del SURROUNDINGS[name]
if not pads(torch.jagged):
    del SURROUNDINGS["nested_jagged"]

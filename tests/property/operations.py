"""The operations that the random programs are made of: each takes one or two tensors of the pool and a small number."""

# mypy: allow-untyped-calls
# Part of torch is untyped.
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name
from torch import Tensor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from tests.property import functions

Apply = Callable[[Tensor, Tensor, int], Any]
"""``(x, y, k)``: ``y`` has the shape of ``x`` and may be the same tensor; the result is a tensor or several."""


def has_graph(x: Tensor) -> bool:
    try:
        return not x.is_leaf
    except RuntimeError:  # a view that torch lets nobody use any more
        return False


def anything(x: Tensor) -> bool:
    return True


def has_dimensions(x: Tensor) -> bool:
    return x.dim() >= 1 and x.shape[0] >= 2


def is_no_view(x: Tensor) -> bool:
    return not x._is_view()


def is_matrix(x: Tensor) -> bool:
    return x.dim() == 2 and min(x.shape) >= 2


def is_square(x: Tensor) -> bool:
    return is_matrix(x) and x.shape[0] == x.shape[1]


class Operation(NamedTuple):
    """``needs`` says which tensors of the pool ``apply`` can take."""

    needs: Callable[[Tensor], bool]
    apply: Apply


def custom(function: type[torch.autograd.Function], *extra: Any) -> Callable[..., Any]:
    def call(*tensors: Tensor) -> Any:
        return function.apply(*tensors, *extra)

    return call


def mixed(x: Tensor) -> Tensor:
    return x.sin() * x.exp().add(1).log()


def checkpointed(x: Tensor, reentrant: bool) -> Tensor:
    out: Tensor = checkpoint(mixed, x, use_reentrant=reentrant)
    return out


def under_user_hooks(x: Tensor, y: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda t: t.detach(), lambda t: t):
        return x * y


def offloaded(x: Tensor) -> Tensor:
    with save_on_cpu():
        return x.sigmoid()


def without_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x * 2


def rows(x: Tensor, k: int) -> Tensor:
    return torch.tensor([k % x.shape[0], 0], dtype=torch.long)


def batch_norm(x: Tensor, k: int) -> Tensor:
    mean, variance = torch.zeros(x.shape[1]), torch.ones(x.shape[1])
    return F.batch_norm(x, mean, variance, training=k % 2 == 0)


def lstm_cell(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    weight = torch.cat([x, y]).repeat(2, 1)[: 4 * x.shape[0]].t().contiguous().t()
    state = (torch.zeros_like(x), y)
    hidden, cell = torch.lstm_cell(x, state, weight, weight)
    return hidden, cell


def foreach(x: Tensor, y: Tensor, k: int) -> tuple[Tensor, ...]:
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: torch._foreach_mul([x, y], [y, x]),
        lambda: torch._foreach_exp([x, y]),
        lambda: torch._foreach_add([x, y], 1.0),
        lambda: torch._foreach_norm([x, y]),
    )
    return tuple(kinds[k % len(kinds)]())


FORWARD: dict[str, Operation] = {
    # saving the input, the output, a scalar only, or nothing
    "neg": Operation(anything, lambda x, y, k: -x),
    "exp": Operation(anything, lambda x, y, k: x.exp()),
    "log": Operation(anything, lambda x, y, k: (x.abs() + 1).log()),
    "sqrt": Operation(anything, lambda x, y, k: (x.abs() + 1).sqrt()),
    "sin": Operation(anything, lambda x, y, k: x.sin()),
    "sigmoid": Operation(anything, lambda x, y, k: x.sigmoid()),
    "tanh": Operation(anything, lambda x, y, k: x.tanh()),
    "relu": Operation(anything, lambda x, y, k: x.relu()),
    "gelu": Operation(anything, lambda x, y, k: F.gelu(x)),
    "softplus": Operation(anything, lambda x, y, k: F.softplus(x)),
    "clamp": Operation(anything, lambda x, y, k: x.clamp(-1, 1)),
    "abs": Operation(anything, lambda x, y, k: x.abs()),
    "pow_scalar": Operation(anything, lambda x, y, k: x ** (1 + k % 3)),
    "scalar_pow": Operation(anything, lambda x, y, k: 2.0**x),
    "pow_tensor": Operation(anything, lambda x, y, k: (x.abs() + 1) ** y),
    "mul_scalar": Operation(anything, lambda x, y, k: x * 0.99),
    "div_scalar": Operation(anything, lambda x, y, k: x / 2),
    "add_scalar": Operation(anything, lambda x, y, k: x + 1),
    "rsub_scalar": Operation(anything, lambda x, y, k: 2 - x),
    "dropout": Operation(anything, lambda x, y, k: F.dropout(x, 0.5)),
    "to_double": Operation(anything, lambda x, y, k: x.double().exp().float()),
    "add": Operation(anything, lambda x, y, k: x + y),
    "sub": Operation(anything, lambda x, y, k: torch.sub(x, y, alpha=2)),
    "mul": Operation(anything, lambda x, y, k: x * y),
    "div": Operation(anything, lambda x, y, k: x / (y.abs() + 1)),
    "maximum": Operation(anything, lambda x, y, k: torch.maximum(x, y)),
    "lerp": Operation(anything, lambda x, y, k: x.lerp(y, 0.3)),
    "addcmul": Operation(anything, lambda x, y, k: torch.addcmul(x, x, y, value=0.5)),
    "where": Operation(anything, lambda x, y, k: torch.where(x > y, x, y.exp())),
    "masked_fill": Operation(anything, lambda x, y, k: x.masked_fill(y > 0, 0.5)),
    "mse": Operation(anything, lambda x, y, k: F.mse_loss(x, y)),
    "detach": Operation(anything, lambda x, y, k: x.detach()),
    "clone": Operation(anything, lambda x, y, k: x.clone()),
    "no_grad": Operation(anything, lambda x, y, k: without_grad(x)),
    # reductions
    "sum": Operation(anything, lambda x, y, k: x.sum()),
    "mean": Operation(anything, lambda x, y, k: x.mean()),
    "prod": Operation(anything, lambda x, y, k: x.prod()),
    "max": Operation(anything, lambda x, y, k: x.max()),
    "norm": Operation(anything, lambda x, y, k: x.norm()),
    "var": Operation(has_dimensions, lambda x, y, k: x.var()),
    "logsumexp": Operation(has_dimensions, lambda x, y, k: x.logsumexp(0)),
    "sum_rows": Operation(has_dimensions, lambda x, y, k: x.sum(0)),
    "max_rows": Operation(has_dimensions, lambda x, y, k: x.max(0).values),
    "sort": Operation(has_dimensions, lambda x, y, k: x.sort(0).values),
    "topk": Operation(has_dimensions, lambda x, y, k: x.topk(1, dim=0).values),
    "cumsum": Operation(has_dimensions, lambda x, y, k: x.cumsum(0)),
    "cumprod": Operation(has_dimensions, lambda x, y, k: x.cumprod(0)),
    # normalisation
    "softmax": Operation(has_dimensions, lambda x, y, k: x.softmax(-1)),
    "log_softmax": Operation(has_dimensions, lambda x, y, k: x.log_softmax(0)),
    "layer_norm": Operation(has_dimensions, lambda x, y, k: F.layer_norm(x, x.shape[-1:])),
    "batch_norm": Operation(is_matrix, lambda x, y, k: batch_norm(x, k)),
    "normalize": Operation(has_dimensions, lambda x, y, k: F.normalize(x, dim=0)),
    # linear algebra
    "matmul": Operation(is_square, lambda x, y, k: x @ y),
    "bmm": Operation(is_square, lambda x, y, k: torch.bmm(x[None], y[None])),
    "addmm": Operation(is_square, lambda x, y, k: torch.addmm(x, x, y)),
    "einsum": Operation(is_matrix, lambda x, y, k: torch.einsum("ij,kj->ik", x, y)),
    "linear": Operation(is_square, lambda x, y, k: F.linear(x, y, x[0])),
    "outer": Operation(
        has_dimensions, lambda x, y, k: torch.outer(x.flatten()[:2], y.flatten()[:3])
    ),
    "conv1d": Operation(
        is_matrix, lambda x, y, k: F.conv1d(x[None], y[:, None, :2], groups=x.shape[0])
    ),
    "conv2d": Operation(is_square, lambda x, y, k: F.conv2d(x[None, None], y[None, None, :2, :2])),
    "attention": Operation(
        is_matrix, lambda x, y, k: F.scaled_dot_product_attention(x[None], y[None], x[None])[0]
    ),
    "lstm_cell": Operation(is_square, lambda x, y, k: lstm_cell(x, y)),
    # indexing
    "embedding": Operation(is_matrix, lambda x, y, k: F.embedding(rows(x, k), x)),
    "index": Operation(has_dimensions, lambda x, y, k: x[rows(x, k)]),
    "index_select": Operation(has_dimensions, lambda x, y, k: x.index_select(0, rows(x, k))),
    "index_add": Operation(has_dimensions, lambda x, y, k: x.index_add(0, rows(x, k), y[:2])),
    "gather": Operation(
        has_dimensions, lambda x, y, k: x.gather(0, torch.zeros_like(x, dtype=torch.long))
    ),
    "scatter": Operation(
        has_dimensions, lambda x, y, k: x.scatter(0, torch.zeros_like(y, dtype=torch.long), y)
    ),
    "masked_select": Operation(has_dimensions, lambda x, y, k: x[x >= x.min()]),
    # views
    "flatten": Operation(anything, lambda x, y, k: x.reshape(-1)),
    "unsqueeze": Operation(anything, lambda x, y, k: x.unsqueeze(0)),
    "expand": Operation(anything, lambda x, y, k: x.expand(2, *x.shape)),
    "select": Operation(has_dimensions, lambda x, y, k: x[k % x.shape[0]]),
    "slice": Operation(has_dimensions, lambda x, y, k: x[1:]),
    "transpose": Operation(is_matrix, lambda x, y, k: x.transpose(0, 1)),
    "diagonal": Operation(is_matrix, lambda x, y, k: x.diagonal()),
    # several inputs or outputs
    "unbind": Operation(has_dimensions, lambda x, y, k: x.unbind(0)),
    "split": Operation(has_dimensions, lambda x, y, k: torch.split(x, 1)),
    "chunk": Operation(has_dimensions, lambda x, y, k: x.chunk(2)),
    "stack": Operation(anything, lambda x, y, k: torch.stack([x, y])),
    "cat": Operation(has_dimensions, lambda x, y, k: torch.cat([x, y])),
    "var_mean": Operation(has_dimensions, lambda x, y, k: torch.var_mean(x)),
    "foreach": Operation(anything, lambda x, y, k: foreach(x, y, k)),
    # complex numbers
    "complex": Operation(anything, lambda x, y, k: torch.complex(x, y).exp().real),
    "polar": Operation(
        anything, lambda x, y, k: torch.view_as_real(torch.polar(x.abs() + 1, y)).sum(-1)
    ),
    "fft": Operation(has_dimensions, lambda x, y, k: torch.fft.rfft(x).abs()),
    # custom Functions
    "save_input": Operation(anything, lambda x, y, k: custom(functions.SaveInput, 0.5)(x)),
    "save_output": Operation(anything, lambda x, y, k: custom(functions.SaveOutput)(x)),
    "save_intermediate": Operation(anything, lambda x, y, k: custom(functions.SaveIntermediate)(x)),
    "save_nothing": Operation(anything, lambda x, y, k: custom(functions.SaveNothing)(x)),
    "keep_on_context": Operation(anything, lambda x, y, k: custom(functions.KeepOnContext)(x)),
    "two_outputs": Operation(anything, lambda x, y, k: custom(functions.TwoOutputs)(x, y)),
    "with_index": Operation(anything, lambda x, y, k: custom(functions.WithIndex)(x)[0]),
    "once": Operation(anything, lambda x, y, k: custom(functions.Once)(x)),
    "separate_context": Operation(
        anything, lambda x, y, k: custom(functions.SeparateContext)(x, y)
    ),
    # graphs whose saved tensors are not where one expects them
    "checkpoint": Operation(anything, lambda x, y, k: checkpointed(x, reentrant=False)),
    "checkpoint_reentrant": Operation(anything, lambda x, y, k: checkpointed(x, reentrant=True)),
    "user_hooks": Operation(anything, lambda x, y, k: under_user_hooks(x, y)),
    "save_on_cpu": Operation(anything, lambda x, y, k: offloaded(x)),
}


def assign_row(x: Tensor, y: Tensor) -> None:
    x[0] = y[-1]


def assign_zero(x: Tensor) -> None:
    x[0] = 0.0


IN_PLACE: dict[str, Operation] = {
    "add_": Operation(anything, lambda x, y, k: x.add_(1)),
    "add_tensor_": Operation(anything, lambda x, y, k: x.add_(y)),
    "mul_": Operation(anything, lambda x, y, k: x.mul_(0.5)),
    "mul_tensor_": Operation(anything, lambda x, y, k: x.mul_(y)),
    "sigmoid_": Operation(anything, lambda x, y, k: x.sigmoid_()),
    "exp_": Operation(anything, lambda x, y, k: x.clamp_(max=1).exp_()),
    "relu_": Operation(anything, lambda x, y, k: x.relu_()),
    "zero_": Operation(anything, lambda x, y, k: x.zero_()),
    "copy_": Operation(anything, lambda x, y, k: x.copy_(y)),
    "masked_fill_": Operation(anything, lambda x, y, k: x.masked_fill_(x > 0, 0.5)),
    "assign_row": Operation(has_dimensions, lambda x, y, k: assign_row(x, y)),
    "assign_zero": Operation(has_dimensions, lambda x, y, k: assign_zero(x)),
    "view_mul_": Operation(has_dimensions, lambda x, y, k: x[1:].mul_(2)),
    "t_": Operation(is_matrix, lambda x, y, k: x.t_()),
    "foreach_add_": Operation(anything, lambda x, y, k: torch._foreach_add_([x], 1.0)),
    # Known limit: torch saves under hooks whether a leaf requires grad, so one detached afterwards counts as before.
    "detach_": Operation(has_graph, lambda x, y, k: x.detach_()),
    "mark_dirty": Operation(anything, lambda x, y, k: custom(functions.InPlace)(x)),
    # Known limit: where several threads save, it is not told what CopySlices hides of a Function.
    "mark_dirty_saved": Operation(is_no_view, lambda x, y, k: custom(functions.InPlaceSaved)(x)),
}

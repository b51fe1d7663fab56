"""What a tensor says about itself, while the program's own code and torch's refusals stay out of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gradscope.program import tensors


class Loud(Tensor):
    """A subclass whose code must not run."""

    def __repr__(self) -> str:  # type: ignore[override]
        return "Loud"  # pytest shows it where a test fails

    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError(args)


class LoudMode(TorchFunctionMode):
    def __torch_function__(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError(args)


def asked(tensor: Tensor) -> tuple[Any, ...]:
    node = tensors.node_of(tensor)
    return (
        None if node is None else node.name(),
        tensors.is_leaf(tensor),
        tensors.requires_grad(tensor),
        tensors.version_of(tensor),
        tensors.is_parameter(tensor),
        tensors.describe(tensor),
        tensors.storage_of(tensor) != 0,
    )


LEAF = (None, True, True, 0, True, "f32[2, 3]", True)


def test_a_leaf_and_what_is_computed_from_it() -> None:
    leaf = torch.ones(2, 3, requires_grad=True)
    assert asked(leaf) == LEAF
    assert asked(leaf * 2) == ("MulBackward0", False, True, 0, False, "f32[2, 3]", True)
    assert asked(torch.ones(1).add_(1)) == (None, True, False, 1, False, "f32[1]", True)


def test_a_view_of_a_parameter_costs_the_graph_no_memory() -> None:
    weight = torch.nn.Parameter(torch.ones(2, 3))
    assert tensors.is_parameter(weight.t())
    assert not tensors.is_parameter((weight * 1).t())
    assert tensors.storage_of(weight.t()) == tensors.storage_of(weight)


def test_neither_a_subclass_nor_a_mode_is_asked() -> None:
    plain = torch.ones(2, 3, requires_grad=True)
    with torch._C.DisableTorchFunction():
        loud = torch.ones(2, 3).as_subclass(Loud).requires_grad_()
    assert asked(loud) == LEAF
    with LoudMode():
        found = asked(plain)
    assert found == LEAF


def test_the_gradient_of_a_leaf() -> None:
    leaf = torch.ones(2, requires_grad=True)
    assert tensors.grad_of(leaf) is None
    leaf.sum().backward()
    assert tensors.grad_of(leaf) is leaf.grad


def test_a_view_that_torch_refuses_to_use_is_no_error() -> None:
    base = torch.ones(2, 2, requires_grad=True) * 1
    view, _ = base.unbind(0)
    with torch.no_grad():
        base.mul_(2)
    with pytest.raises(RuntimeError):
        view += 1
    assert tensors.is_leaf(view) is False
    assert tensors.requires_grad(view) is True
    tensors.node_of(view)


def test_a_tensor_that_another_thread_takes_apart_is_no_error() -> None:
    class TakenApart(Tensor):
        """Answers as torch does of a tensor whose C++ part is gone already."""

        def _is_view(self) -> bool:
            raise RuntimeError("cannot call get_autograd_meta() on undefined tensor")

    half = torch.ones(2).as_subclass(TakenApart)
    assert tensors.held_node(half) is None
    assert tensors.is_held_leaf(half)


def test_sparse_tensors_have_no_storage_of_their_own() -> None:
    assert tensors.storage_of(torch.ones(2, 2).to_sparse()) == 0


def test_a_size_that_is_a_symbol_is_no_size() -> None:
    parts = [torch.ones(2), torch.ones(3)]
    ragged = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
    assert tensors.shape_of(ragged) is None
    assert tensors.describe(ragged) == "f32[nested]"

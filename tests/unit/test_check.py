"""``check`` finds what the engine would raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks

import gradscope
from tests.needs import DETACHED_IS_TOLD, SAVED_IS_TOLD, needs


def leaf() -> Tensor:
    return torch.rand(3, 3, requires_grad=True)


def healthy() -> Tensor:
    x = leaf()
    return ((x.exp() * 2.5).sigmoid() @ x / 3.0 + torch.stack([x, x]).prod(0)).sum()


def freed() -> Tensor:
    x = healthy()
    x.backward()
    return x


def freed_below() -> Tensor:
    x = leaf().exp()
    x.sum().backward()
    return (x + 1).sum()


def modified_input() -> Tensor:
    x, factor = leaf(), torch.rand(3, 3)
    y = x * factor
    factor.add_(1)
    return y.sum()


def modified_output() -> Tensor:
    y = leaf().exp()
    z = y * 2
    y.detach().add_(1)
    return z.sum()


def detached_in_place() -> Tensor:
    x = leaf() * 2
    y = x * x.sin()
    x.detach_()
    return y.sum()


def modified_in_a_list() -> Tensor:
    states = [torch.rand(3) for _ in range(3)]
    indices = [torch.tensor([0, 1, 2]), torch.tensor([2, 1, 0])]
    y = leaf()[indices[0], indices[1]] * states[0]
    indices[1].zero_()
    return y.sum()


DETACHED = pytest.param(detached_in_place, marks=needs(DETACHED_IS_TOLD))


def error_of(run: Callable[[], object]) -> str:
    try:
        run()
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "program",
    [
        *(healthy, freed, freed_below, modified_input, modified_output, modified_in_a_list),
        DETACHED,
    ],
)
def test_what_is_found_is_what_the_engine_raises(program: Callable[[], Tensor]) -> None:
    loss = program()
    found = [finding.code for finding in gradscope.check(loss)]
    error = error_of(loss.backward)
    expected = ["GS101"] if "second time" in error else ["GS201"] if error else []
    assert found == expected
    assert bool(error) == (program is not healthy)


def test_hooks_of_the_program_are_not_run() -> None:
    ran: list[int] = []

    def unpack(value: Tensor) -> Tensor:
        ran.append(1)
        return value

    with saved_tensors_hooks(lambda value: value, unpack):
        loss = leaf().exp().sum()
    assert not gradscope.check(loss)
    assert not ran


@pytest.mark.parametrize("as_given", [lambda t: t, get_gradient_edge, lambda t: {"h": t}])
def test_grad_takes_the_gradient_at_an_input_without_running_its_node(
    as_given: Callable[[Tensor], Any],
) -> None:
    hidden = leaf().exp()
    loss = (hidden + 1).sum()
    loss.backward()
    given = as_given(hidden)
    for root in (hidden.sum(), loss):
        assert not gradscope.check(root, inputs=given, kind="grad")
        torch.autograd.grad(root, [hidden], retain_graph=True)
        assert [f.code for f in gradscope.check(root, inputs=given)] == ["GS101"]
        with pytest.raises(RuntimeError, match="second time"):
            root.backward(inputs=[hidden])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kind": "grad"}, "no inputs given: pass the tensors that grad is to differentiate by"),
        ({"inputs": []}, "no inputs given: pass the tensors that backward is to"),
        ({"inputs": ["x"]}, "input 1 is a str: pass tensors (or GradientEdges)"),
        ({"kind": "vjp"}, 'kind is \'vjp\': it is "backward" or "grad"'),
    ],
)
def test_wrong_arguments_are_told(given: dict[str, Any], said: str) -> None:
    with pytest.raises(gradscope.GradscopeError) as told:
        gradscope.check(healthy(), **given)
    assert said in str(told.value)


@pytest.mark.parametrize("program", [healthy, freed, modified_input, DETACHED])
def test_a_snapshot_shows_the_same(program: Callable[[], Tensor]) -> None:
    loss = program()
    states = {node.state for node in gradscope.snapshot(loss).nodes}
    error = error_of(loss.backward)
    assert ("freed" in states) == ("second time" in error)
    assert ("stale" in states) == (bool(error) and "second time" not in error)


class _Falsy:
    def __bool__(self) -> bool:
        raise AssertionError

    def __call__(self, value: Tensor) -> Tensor:
        raise AssertionError


@pytest.mark.parametrize("look", [gradscope.check, gradscope.snapshot])
def test_no_code_of_a_hook_is_run(look: Callable[[Tensor], object]) -> None:
    with saved_tensors_hooks(lambda value: value, _Falsy()):
        loss = leaf().exp().sum()
    look(loss.sin())


@needs(SAVED_IS_TOLD)
def test_a_check_leaves_nothing_on_a_graph_that_is_whole() -> None:
    x = leaf()
    loss = (x.exp() * x).sum()
    before = gradscope.snapshot(loss)
    assert not gradscope.check(loss)
    node: Any = loss.grad_fn
    assert not node.metadata
    assert gradscope.snapshot(loss) == before


class _ReadsOnce(Function):
    """Lets go of what it saved as soon as its backward has read it (torch 2.13)."""

    clear_saved_tensors_on_access = True

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(factor)
        return x * factor

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (factor,) = ctx.saved_tensors
        return grad * factor, None


def reads_once(factor: Tensor) -> Tensor:
    result: Tensor = _ReadsOnce.apply(leaf(), factor)  # type: ignore[no-untyped-call]
    return result.sum()


@pytest.mark.parametrize(
    "look",
    [
        *(gradscope.check, gradscope.snapshot, gradscope.saved_tensors, gradscope.uses),
        *(gradscope.to_dot, lambda loss: str(gradscope.follow(loss))),
    ],
)
def test_a_look_does_not_read_what_a_function_gives_once(look: Callable[[Tensor], object]) -> None:
    loss = reads_once(torch.rand(3, 3))
    look(loss)
    loss.backward()


@pytest.mark.parametrize("hooks", [True, False])
def test_a_watch_does_not_read_what_a_function_gives_once(hooks: bool) -> None:
    with gradscope.watch(hooks=hooks) as scope:
        reads_once(torch.rand(3, 3)).backward()
        factor = torch.rand(3, 3)
        loss = reads_once(factor)
        factor.add_(1)
        assert [f.code for f in gradscope.check(loss)] == ["GS201"]
        assert "modified by an inplace operation" in error_of(loss.backward)
    assert [(f.code, f.missed) for f in scope.findings if f.code != "GS202"] == [("GS201", False)]

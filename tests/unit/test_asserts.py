"""The assertions hold where they should, and their messages name what does not."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

import gradscope
from gradscope.errors import GradscopeError

pytestmark = pytest.mark.usefixtures("little_is_read_ahead")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def loss_of(net: nn.Module) -> torch.Tensor:
    out: torch.Tensor = net(torch.ones(2, 4)).pow(2).mean()
    return out


def test_a_graph_is_freed_by_backward() -> None:
    loss = loss_of(network())
    with pytest.raises(AssertionError, match=r"nodes of the graph .* hold .* of saved tensors"):
        gradscope.assert_freed(loss)
    loss.backward(retain_graph=True)
    with pytest.raises(AssertionError, match="retain_graph=True"):
        gradscope.assert_freed(loss)
    loss.backward()
    gradscope.assert_freed(loss)


def test_a_graph_that_saved_nothing_holds_nothing() -> None:
    gradscope.assert_freed(torch.ones(3, requires_grad=True).sum())


def test_what_is_no_graph_is_refused() -> None:
    for assertion in (gradscope.assert_freed, lambda t: gradscope.assert_trains(t, network())):
        with pytest.raises(GradscopeError, match="no backward graph"):
            assertion(torch.ones(3))


def test_what_grows_is_named_as_in_its_finding() -> None:
    net, losses = network(), list[torch.Tensor]()

    @gradscope.assert_no_growth()
    def train(*, keep: bool) -> None:
        for _ in range(12):
            loss_of(net).backward()
            losses.extend([loss_of(net)] * keep)

    train(keep=False)
    with pytest.raises(AssertionError, match="`losses` keeps the graphs of earlier iterations"):
        train(keep=True)


def grow() -> None:
    net, kept = network(), list[torch.Tensor]()
    for _ in range(12):
        loss_of(net).backward()
        kept.append(loss_of(net))


def carry() -> None:
    net, total = network(), torch.zeros(())
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for _ in range(12):
        optimizer.zero_grad()
        loss = loss_of(net)
        loss.backward()
        optimizer.step()
        total = total + loss


def train() -> None:
    """Training in which nothing grows, long enough that the hooks are lifted."""
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for _ in range(40):
        optimizer.zero_grad()
        loss_of(net).backward()
        optimizer.step()


def failure_of(program: Callable[[], None]) -> str:
    """The first line of what `assert_no_growth` says of a program."""
    try:
        with gradscope.assert_no_growth():
            program()
    except AssertionError as failure:
        return str(failure).splitlines()[0]
    return ""


def nested(program: Callable[[], None]) -> str:
    with gradscope.watch():
        return failure_of(program)


def nested_twice(program: Callable[[], None]) -> str:
    with gradscope.watch(), gradscope.watch():
        return failure_of(program)


def after_the_same(program: Callable[[], None]) -> str:
    with gradscope.watch():
        program()
        return failure_of(program)


def after_training(program: Callable[[], None]) -> str:
    with gradscope.watch():
        train()
        return failure_of(program)


def in_thread(program: Callable[[], None]) -> str:
    said = list[str]()
    thread = threading.Thread(target=lambda: said.append(failure_of(program)))
    thread.start()
    thread.join()
    return said[0]


def in_thread_of_another(program: Callable[[], None]) -> str:
    with gradscope.watch():
        train()
        return in_thread(program)


PLACES = (
    failure_of,
    nested,
    nested_twice,
    after_the_same,
    after_training,
    in_thread,
    in_thread_of_another,
)


@pytest.mark.parametrize("program", [grow, carry, train])
@pytest.mark.parametrize("place", PLACES)
def test_growth_is_asserted_wherever_the_watch_is_entered(
    place: Callable[[Callable[[], None]], str], program: Callable[[], None]
) -> None:
    said = place(program)
    if program is train:
        assert not said
    else:
        name = "kept" if program is grow else "total"
        assert f"`{name}`" in said


def test_an_inner_watch_raises_what_the_outer_only_tells() -> None:
    def run_twice() -> None:
        loss = loss_of(network())
        loss.backward()
        loss.backward()

    with gradscope.watch() as outer:
        for _ in range(2):
            raises = pytest.raises(gradscope.FreedGraphError)
            with gradscope.watch(raise_on="error") as inner, raises:
                run_twice()
            assert [one.code for one in inner.findings] == ["GS102", "GS101"]
    assert [(one.code, one.count) for one in outer.findings] == [("GS102", 2), ("GS101", 2)]


def test_what_the_block_raises_is_not_replaced() -> None:
    with pytest.raises(ZeroDivisionError), gradscope.assert_no_growth():
        raise ZeroDivisionError


def test_all_parameters_get_a_gradient_and_are_stepped() -> None:
    net = network()
    names = ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert gradscope.assert_trains(loss_of(net), net) == names
    by = torch.optim.SGD(net.parameters(), 0.1)
    assert gradscope.assert_trains(loss_of(net), net, by) == names
    assert all(parameter.grad is None for parameter in net.parameters())


def test_a_parameter_without_a_gradient_is_named() -> None:
    net = network()
    hidden = net[1](net[0](torch.ones(2, 4))).detach()
    with pytest.raises(
        AssertionError, match=r"no gradient comes from this loss to: `0\.weight`, `0\.bias`\n"
    ):
        gradscope.assert_trains(net[2](hidden).mean(), net)


def test_a_parameter_that_is_not_stepped_is_named() -> None:
    net = network()
    by = torch.optim.SGD(net[0].parameters(), 0.1)
    with pytest.raises(AssertionError, match=r"SGD does not have: `2\.weight`, `2\.bias`$"):
        gradscope.assert_trains(loss_of(net), net, by)


def test_frozen_parameters_are_not_asked_for() -> None:
    net = network()
    net[0].requires_grad_(False)
    assert gradscope.assert_trains(loss_of(net), net) == ["2.weight", "2.bias"]

"""The names of modules, parameters, variables and roots, and that remembering them keeps nothing alive."""

from __future__ import annotations

import sys
import weakref
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import gradscope
from gradscope.program.names import Names, names_in


class Spy(nn.Module):
    """Asks, while it runs, in which module it is."""

    def __init__(self, names: Names) -> None:
        super().__init__()
        self.names = names
        self.weight = nn.Parameter(torch.ones(1))
        self.found: list[tuple[str, str] | None] = []

    def forward(self, x: Tensor) -> Tensor:
        self.found.append(self.names.module_of(sys._getframe()))
        return x * self.weight


def test_a_module_is_named_by_its_variable_and_its_path() -> None:
    names = Names()
    spy = Spy(names)
    model = nn.Sequential(nn.Identity(), nn.Sequential(spy))
    model(torch.ones(1))
    assert spy.found == [("model.1.0", "Spy")]
    assert names.of_tensor(spy.weight) == "model.1.0.weight"


def test_a_module_held_by_self_is_named_by_the_attribute() -> None:
    class Trainer:
        def __init__(self, model: Spy) -> None:
            self.model = model

        def step(self) -> None:
            self.model(torch.ones(1))

    spy = Spy(Names())
    Trainer(spy).step()
    assert spy.found == [("self.model", "Spy")]


def test_naming_a_module_asks_no_attribute_of_self() -> None:
    class Lazy:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise AssertionError

        def step(self, models: list[Spy]) -> None:
            models[0](torch.ones(1))

    spy = Spy(Names())
    Lazy().step([spy])
    assert spy.found == [("models[0]", "Spy")]


def test_a_module_that_nothing_names_goes_by_its_class() -> None:
    names, found = Names(), []
    for _ in range(3):  # each is gone when the next is made
        call = hidden(Spy(names))
        call(torch.ones(1))
        found += call.args[0].found
        del call
    assert found == [("Spy", "Spy")] * 3


def hidden(net: Spy) -> Any:
    """Return what calls a module that no frame has in a variable or a container."""
    return partial(type(net).__call__, net)


def test_modules_of_one_class_are_told_apart() -> None:
    names = Names()
    live = [Spy(names), Spy(names)]
    parts = {"g": live.pop(), "d": live.pop()}
    for key, call in [("g", hidden(parts["g"])), ("d", hidden(parts["d"]))]:
        call(torch.ones(1))
        assert parts[key].found == [(f"parts['{key}']", "Spy")]

    class Gan:
        def __init__(self) -> None:
            self.nets = (Spy(names), Spy(names))

        def run(self) -> None:
            for call in map(hidden, self.nets):
                call(torch.ones(1))

    gan = Gan()
    gan.run()
    assert [net.found[0] for net in gan.nets] == [("gan.nets[0]", "Spy"), ("gan.nets[1]", "Spy")]
    apart = [hidden(Spy(names)), hidden(Spy(names))]
    for call in apart:
        call(torch.ones(1))
    assert [call.args[0].found[0] for call in apart] == [("Spy", "Spy"), ("Spy_2", "Spy")]
    again = hidden(Spy(names))
    del apart[1], call
    again(torch.ones(1))
    assert again.args[0].found == [("Spy_2", "Spy")]


def test_outside_of_any_module_there_is_none() -> None:
    assert Names().module_of(sys._getframe()) is None
    assert Names().module_of(None) is None


def test_variables_name_leaves_and_what_shares_their_memory() -> None:
    names = Names()
    weight = torch.ones(2, requires_grad=True)
    _hidden = torch.ones(2)
    computed = weight * 2
    names.learn_variables([sys._getframe()])
    assert names.of_tensor(weight) == "weight"
    assert names.of_tensor(weight.detach().t()) == "weight"
    assert names.of_tensor(_hidden) is None
    assert names.of_tensor(computed) is None


def test_what_is_remembered_is_not_kept_alive_nor_mistaken() -> None:
    names = Names()
    weight = torch.ones(2)
    names.learn_variables([sys._getframe()])
    gone = weakref.ref(weight)
    del weight
    assert gone() is None
    assert [names.of_tensor(torch.ones(2)) for _ in range(20)] == [None] * 20


def test_roots_are_named_by_the_frames_own_variables_first() -> None:
    loss, other = torch.ones(1), torch.ones(1)
    again = loss
    assert again is loss
    found = names_in(sys._getframe(), (loss, other, torch.ones(1), sys))
    assert found == ["loss", "other", None, "sys"]


def test_a_graphs_root_and_leaf_show_the_variables_names() -> None:
    weight = torch.ones(2, requires_grad=True)
    total = (weight * weight).sum()
    graph = gradscope.snapshot(total)
    assert graph.roots[0].name == "total"
    assert [node.variable for node in graph.nodes if node.variable] == ["weight"]


def test_modules_and_leaves_in_attributes_are_named_by_their_owner() -> None:
    class Agent:
        def __init__(self) -> None:
            self.policy = nn.Linear(2, 1)
            self.scale = torch.ones(1, requires_grad=True)

    agent = Agent()
    names = Names()
    names.learn_variables([sys._getframe()])
    assert names.of_tensor(agent.policy.weight) == "agent.policy.weight"
    assert names.of_tensor(agent.scale) == "agent.scale"


def test_what_a_module_s_own_method_calls_is_named_as_the_caller_sees_it() -> None:
    names = Names()

    class Lit(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Spy(names)

        def training_step(self) -> None:
            hidden(self.net)(torch.ones(1))

    lit = Lit()
    lit.training_step()
    assert lit.net.found == [("lit.net", "Spy")]
    listed = [Lit()]
    listed[0].training_step()
    assert listed[0].net.found == [("listed[0].net", "Spy")]


def test_nothing_refers_to_a_tensor_once_the_watch_is_over() -> None:
    """Torch swaps no tensor to which something refers weakly (``torch.utils.swap_tensors``)."""
    model, head = nn.Linear(2, 2), nn.Linear(2, 1).requires_grad_(False)
    optimizer = torch.optim.SGD([model.weight], lr=0.1)
    unused = nn.Parameter(torch.ones(2))
    optimizer.add_param_group({"params": [unused]})
    with gradscope.watch() as outer:
        with gradscope.watch() as scope:
            for _ in range(3):
                head(model(torch.ones(3, 2))).sum().backward()
                optimizer.step()
        assert weakref.getweakrefs(model.weight) != []
    tensors = [*model.parameters(), *head.parameters(), unused, model.weight.grad]
    assert [weakref.getweakrefs(tensor) for tensor in tensors] == [[]] * 6
    training = scope.summary.training
    assert (training, outer.summary.training) == (training, training)
    assert training is not None
    assert training.frozen

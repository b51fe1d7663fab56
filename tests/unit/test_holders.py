"""Which names the bounded scan finds for tensors with graphs, and what it leaves untouched."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import queue
import sys
import types
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import pytest
import torch
from scanning import Names, frame_with, made, scan, scan_variables
from torch import Tensor, nn

from gradscope.program.reach import Limits, named_tensors
from tests import known


class Pair(NamedTuple):
    mean: Tensor
    scale: Tensor


@dataclasses.dataclass
class Transition:
    state: Tensor
    log_prob: Tensor


@dataclasses.dataclass(slots=True)
class Slotted:
    state: Tensor


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(2, 2)
        self.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.named = nn.ModuleDict({"a b": nn.Linear(2, 2)})
        self.register_buffer("center", torch.zeros(2))
        self.memory: Any = None


def test_variables_of_a_function_and_of_its_closure() -> None:
    hidden = made()

    def step() -> Names:
        local = hidden * 2
        named = named_tensors([sys._getframe()], Limits())
        found = {path.text: path for _, paths in reversed(named) for path in reversed(paths)}
        assert local is not None
        assert found["local"].origin.owner == "local"
        assert found["hidden"].origin.owner == "cell"
        assert found["local"].origin.function.endswith("step")
        assert found["local"].origin.file == __file__
        assert found["local"].root == "local"
        assert found["local"].steps == ()
        return {}

    step()


def test_the_variable_of_a_comprehension_in_a_module() -> None:
    namespace: dict[str, Any] = {
        "made": made,
        "look": lambda: scan(sys._getframe(1))[0],
        "__name__": "__main__",
    }
    exec(compile("seen = [look() for batch in [made()]]", "<stdin>", "exec"), namespace)
    assert list(namespace["seen"][0]) == ["batch"]


def test_only_tensors_with_a_graph_are_told_of() -> None:
    parameter = nn.Parameter(torch.ones(2))
    found = scan_variables(
        loss=made(), plain=torch.ones(2), parameter=parameter, detached=made().detach()
    )
    assert list(found) == ["loss"]


def test_containers() -> None:
    t = made()
    found = scan_variables(
        losses=[1.0, t],
        replay=[0, 1, 2, (None, t * 1)],
        cache={"k": [t * 1], ("a", 1): t * 1, 3: t * 1},
        queue=collections.deque([t * 1]),
        ordered=collections.OrderedDict(x=t * 1),
        default=collections.defaultdict(list, {"y": [t * 1]}),
        pair=Pair(t * 1, t * 1),
        members={t * 1},
        frozen=frozenset({t * 1}),
        by_tensor={t * 1: 0},
    )
    assert set(found) == {
        *(
            "losses[1]",
            "replay[3][1]",
            "cache['k'][0]",
            "cache[('a', 1)]",
            "cache[3]",
            "queue[0]",
            "ordered['x']",
        ),
        *(
            "default['y'][0]",
            "pair.mean",
            "pair.scale",
            "members[…]",
            "frozen[…]",
            "by_tensor -> its key",
        ),
    }
    assert found["losses[1]"] is t


def test_what_is_held_in_c() -> None:
    t = made()
    waiting: queue.SimpleQueue[Tensor] = queue.SimpleQueue()
    waiting.put(t * 1)
    variable = ContextVar[Tensor]("variable")
    variable.set(t * 1)
    longest = itertools.zip_longest([1, [t * 1]], [])
    next(longest)  # the place of the second is empty now
    found = scan_variables(
        longest=longest,
        again=itertools.repeat(t * 1),
        left=itertools.starmap(max, [(t * 1,)]),
        waiting=waiting,
        variable=variable,
    )
    assert set(found) == {"longest[1][0]", "again", "left[0][0]", "waiting[0]", "variable"}


def test_attributes_of_objects() -> None:
    class Derived(dict):  # type: ignore[type-arg]
        pass

    derived = Derived(k=made())
    derived.note = made()  # type: ignore[attr-defined]
    tensor = torch.ones(2)
    tensor.origin = made()  # type: ignore[attr-defined]
    found = scan_variables(
        record=Transition(made(), made()),
        slotted=Slotted(made()),
        space=types.SimpleNamespace(inner=types.SimpleNamespace(h=made())),
        derived=derived,
        tensor=tensor,
    )
    assert set(found) == {
        *("record.state", "record.log_prob", "slotted.state", "space.inner.h"),
        *("derived['k']", "derived.note", "tensor.origin"),
    }


def test_modules_are_named_as_they_are_used() -> None:
    net = Recurrent()
    net.memory = made()
    net.center = made()
    net.layers[1].state = made()
    net.named["a b"].state = [made()]  # type: ignore[assignment]
    net.cell.weight.grad = torch.autograd.grad(
        (net.cell.weight**2).sum(), net.cell.weight, create_graph=True
    )[0]
    chain = nn.Sequential(nn.Identity(), net)
    assert set(scan_variables(chain=chain)) == {
        *(
            "chain[1].memory",
            "chain[1].center",
            "chain[1].layers[1].state",
            "chain[1].named['a b'].state[0]",
        ),
        "chain[1].cell.weight.grad",
    }


def test_hooks_of_modules_and_tensors() -> None:
    net, activations = nn.Sequential(nn.Linear(2, 2)), []
    tensor = torch.ones(2, requires_grad=True)

    def keep_gradients(kept: list[Tensor]) -> None:
        tensor.register_hook(lambda grad: kept.append(grad))

    keep_gradients([made()])
    net[0].register_forward_hook(lambda module, args, output: activations.append(output))
    net(torch.ones(2))
    assert set(scan_variables(net=net, tensor=tensor)) == {
        "net[0]._forward_hooks -> closure activations[0]",
        "tensor._backward_hooks -> closure kept[0]",
    }


def test_functions_and_what_wraps_them() -> None:
    acts = [made()]

    def hook(kept: object = made(), *, also: object = made()) -> object:
        return acts, kept, also

    @functools.cache
    def prototypes() -> Tensor:
        return made()

    @functools.lru_cache(maxsize=8)
    def bounded(_: int) -> Tensor:
        return made()

    def counted() -> None: ...

    counted.cache = {"k": made()}  # type: ignore[attr-defined]
    prototypes()
    bounded(3)
    found = scan_variables(
        hook=hook,
        prototypes=prototypes,
        bounded=bounded,
        counted=counted,
        partial=functools.partial(print, made(), sep=made()),
        append=[made()].append,
        method=Transition(made(), torch.ones(2)).__init__,  # type: ignore[misc]
    )
    assert {name for name in found if "__globals__" not in name} >= {
        *("<closure of hook>.acts[0]", "<default of hook>.kept", "<default of hook>.also"),
        *("<lru_cache of prototypes>", "<lru_cache of bounded>", "counted.cache['k']"),
        *(
            "partial.args[0]",
            "partial.keywords['sep']",
            "append.__self__[0]",
            "method.__self__.state",
        ),
    }


def test_frames_of_generators_and_exceptions() -> None:
    def batches() -> Iterator[int]:
        z = made()
        yield 1
        assert z is not None

    def fail() -> None:
        out = made()
        raise ValueError(out.shape)

    async def waiting() -> None:
        held = made()
        await asynchronous()
        assert held is not None

    @types.coroutine
    def asynchronous() -> Iterator[None]:
        yield

    stream, numbered, coroutine = batches(), enumerate(batches()), waiting()
    next(stream)
    next(numbered)
    coroutine.send(None)
    failures = []
    try:
        fail()
    except ValueError as error:
        failures.append(error)
        assert error.__traceback__ is not None
        raised = known(error.__traceback__.tb_next).tb_lineno
    found = scan_variables(stream=stream, numbered=numbered, failures=failures, coroutine=coroutine)
    coroutine.close()
    assert set(found) >= {
        *(
            "stream -> frame of batches: z",
            "numbered -> frame of batches: z",
            "coroutine -> frame of waiting: held",
        ),
        f"failures[0].__traceback__ -> frame of fail (test_holders.py:{raised}): out",
    }


class Config:
    field: Any = None
    nested: Any = None

    @staticmethod
    def build(kept: Any = None) -> Any:
        return kept


def test_attributes_of_the_users_classes() -> None:
    Config.field = made()
    Config.nested = {"k": made()}
    try:
        by_name, by_instance = scan_variables(Config=Config), scan_variables(config=Config())
    finally:
        Config.field = Config.nested = None
    assert set(by_name) == {"Config.field", "Config.nested['k']"}
    assert set(by_instance) >= set(by_name)


def test_modules_of_the_user_are_entered_and_installed_ones_are_not(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "user_helpers.py").write_text("import torch\nCACHE = {}\ndef use(): return CACHE\n")
    monkeypatch.syspath_prepend(tmp_path)
    import user_helpers  # type: ignore[import-not-found]

    user_helpers.CACHE["k"] = made()
    monkeypatch.setattr(torch, "kept_here", made(), raising=False)
    assert set(scan_variables(user_helpers=user_helpers, torch=torch)) == {
        "user_helpers.CACHE['k']"
    }
    assert set(scan_variables(use=user_helpers.use)) == {"user_helpers.CACHE['k']"}
    monkeypatch.delitem(sys.modules, "user_helpers")


def test_weak_containers_do_not_hold() -> None:
    t, key = made(), Transition
    found = scan_variables(
        by_value=weakref.WeakValueDictionary(k=t),
        reference=weakref.ref(t),
        weak_set=weakref.WeakSet([t]),
        by_key=weakref.WeakKeyDictionary({key: made()}),
    )
    assert t is not None
    assert len(found) == 1
    assert next(iter(found)).startswith("by_key.data[")


def in_order(**variables: Any) -> list[str]:
    """The names that are found when these are the only variables, as they are told."""
    named = named_tensors([frame_with(**variables)], Limits())
    return [path.text for _, paths in named for path in paths]


def test_every_name_of_a_tensor_is_told_shortest_first() -> None:
    state = made()
    memory = [state]
    owner = types.SimpleNamespace(memory=memory, parent=None)
    owner.parent = owner
    names = in_order(owner=owner, memory=memory, state=state)
    assert names == ["state", "memory[0]", "owner.memory[0]"]


def test_names_that_people_give_come_before_underscores() -> None:
    t = made()
    names = in_order(_=t, _3=t, Out={3: t}, loss=t)
    assert names == ["loss", "_", "_3", "Out[3]"]


def test_a_path_is_plain_data_with_its_steps() -> None:
    cache = {"k": [made()]}
    named = named_tensors([sys._getframe()], Limits())
    path = next(path for _, paths in named for path in paths if path.root == "cache")
    assert path.steps == (("item", "k"), ("item", 0))
    assert cache

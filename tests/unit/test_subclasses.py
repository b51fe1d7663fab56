"""A tensor subclass, and a nested tensor, while gradscope looks: neither is asked anything, and no part of gradscope fails."""

from __future__ import annotations

import warnings
from contextlib import nullcontext, suppress
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import gradscope
from gradscope.model import Related
from tests.needs import DETACHED_IS_TOLD, needs, pads

seen: list[str] = []


class Spy(Tensor):
    """Notes what it is asked for."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        seen.append(getattr(func, "__name__", "?"))
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


def iterate() -> None:
    """Freed memory that is the graph's alone, a view that several iterations keep, and a stale tensor."""
    weight = torch.ones(3, 3, requires_grad=True)
    kept = []
    for _ in range(4):
        out = (weight.as_subclass(Spy) * weight + weight.exp())[1:]
        kept.append(out)
        (out**2).sum().backward(retain_graph=True)
    (weight.as_subclass(Spy) * weight).sin().sum().backward()
    stale = weight.as_subclass(Spy) * 2
    loss = (stale * weight).sum()
    stale.zero_()
    with suppress(RuntimeError):
        loss.backward()


@pytest.mark.parametrize("hooks", [True, False])
def test_a_subclass_sees_only_what_the_program_does(hooks: bool) -> None:
    seen.clear()
    iterate()
    plain = list(seen)
    seen.clear()
    with gradscope.watch(hooks=hooks) as scope:
        iterate()
    assert seen == plain
    assert "backward" in plain
    told = [f.code for f in scope.findings if f.certainty == "certain" and not f.missed]
    assert told == ["GS201"]


@pytest.mark.parametrize("hooks", [True, False])
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_switch_nothing_off(layout: torch.layout, hooks: bool) -> None:
    with warnings.catch_warnings(), gradscope.watch(hooks=hooks) as scope:
        warnings.simplefilter("ignore")
        x = torch.rand(3, 3, requires_grad=True)
        if not pads(layout):
            pytest.skip(f"this torch does not pad {layout}")
        for _ in range(3):
            both = torch.nested.as_nested_tensor([x, x[:1]], layout=layout)
            out = torch.nested.to_padded_tensor(both * both, 0.0)
            both.data.size(0)
            out.sum().backward()
        assert scope.recording().summary.notes == ()
        assert scope.summary.backward_calls == 3


@needs(DETACHED_IS_TOLD)  # torch 2.8 and before refuse it in the checkpoint, with words of its own
def test_an_input_of_a_checkpoint_that_was_detached_in_place() -> None:
    from torch.utils.checkpoint import checkpoint

    with gradscope.watch() as scope:
        x = torch.ones(3, requires_grad=True) * 2
        out = checkpoint(lambda x: x.exp() * x, x, use_reentrant=False)
        x.detach_()
        with pytest.raises(RuntimeError, match="detached in-place"):
            out.sum().backward()
    assert [(f.code, f.missed) for f in scope.findings] == [("GS201", False)]


# --- what runs in an override is placed where the operation was asked for


def passed_on(func: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs)


class Passing(Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            found = passed_on(func, args, kwargs or {})
        return found.as_subclass(cls) if type(found) is Tensor else found


class OneOverTheOther(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with Mode():
            return func(*args, **(kwargs or {}))


class Mode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return passed_on(func, args, kwargs or {})


class Dispatching(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return passed_on(func, args, kwargs or {})


def use_twice(x: Tensor) -> None:
    weight = torch.ones(3, requires_grad=True)
    state = (x * weight).exp()
    state.sum().backward()
    state.pow(2).sum().backward()


def change_and_step(x: Tensor) -> None:
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    changed = (x * weight).exp()
    changed.add_(1)
    loss = (weight * weight * x).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    changed.sum().backward()


def hook_that_computes(x: Tensor) -> None:
    weight = torch.ones(3, requires_grad=True)
    kept = (x * weight).exp()

    def hook(grad: Tensor) -> None:
        kept.sum().backward()

    other = weight * 1
    other.register_hook(hook)
    for _ in range(2):
        other.sum().backward(retain_graph=True)


def places(program: Any, x: Tensor, mode: Any) -> tuple[list[Any], set[Any], set[str]]:
    """Where the calls, the findings and their other places are; the overrides that are named."""
    with gradscope.watch() as scope, mode, suppress(RuntimeError):
        program(x)
    calls = [call.site and call.site.line for call in scope.recording().calls]
    told = [
        (finding.code, place)
        for finding in scope.findings
        for place in (Related("itself", finding.site, ""), *finding.related)
    ]
    through = {place.message for _, place in told if "goes through" in place.message}
    related = {
        (code, place.role, place.site and place.site.line)
        for code, place in told
        if place.message not in through
    }
    return calls, related, {message.split("`")[1] for message in through}


@pytest.mark.parametrize("program", [use_twice, change_and_step, hook_that_computes])
@pytest.mark.parametrize(
    ("kind", "mode", "override"),
    [
        (Passing, nullcontext, "Passing.__torch_function__"),
        (Tensor, Mode, "Mode.__torch_function__"),
        (Tensor, OneOverTheOther, "OneOverTheOther.__torch_function__"),
    ],
)
def test_an_override_changes_no_place(program: Any, kind: Any, mode: Any, override: str) -> None:
    calls, related, _ = places(program, torch.ones(3), nullcontext())
    found = places(program, torch.ones(3).as_subclass(kind), mode())
    assert found[:2] == (calls, related)
    assert found[2] <= {override}
    assert found[2] or program is hook_that_computes


@pytest.mark.parametrize("program", [use_twice, change_and_step, hook_that_computes])
def test_a_dispatching_mode_moves_no_call(program: Any) -> None:
    calls, _, _ = places(program, torch.ones(3), nullcontext())
    mode = Dispatching()  # type: ignore[no-untyped-call]
    assert places(program, torch.ones(3), mode)[0] == calls

"""A tensor subclass, and a nested tensor, while gradscope looks: neither is asked anything, and no part of ours fails."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor

import gradscope
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

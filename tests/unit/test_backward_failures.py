"""A fault of gradscope's own at the choke point never becomes the program's."""

from __future__ import annotations

import traceback
from contextlib import nullcontext

import pytest
import torch

import gradscope
from gradscope.api.watch import current
from gradscope.collect.backward import Backward
from gradscope.collect.inspector import Inspector
from tests import known


def two_losses() -> tuple[torch.Tensor, torch.Tensor]:
    shared = torch.ones(3, requires_grad=True).exp()
    return shared.sin().sum(), shared.cos().sum()


@pytest.mark.parametrize(
    "part", [(Inspector, "walk"), (Backward, "_look"), (Backward, "_finish")], ids=str
)
def test_a_failure_is_noted_and_the_call_runs(
    part: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("made for this test")

    # A frame of the program's in the traceback would make it an exception of the program's.
    fail.__code__ = fail.__code__.replace(co_filename=gradscope.__file__)
    monkeypatch.setattr(*part, fail)
    leaf = torch.ones(3, requires_grad=True)
    with gradscope.watch() as scope:
        (leaf * leaf).sum().backward()
        notes = scope.recording().summary.notes
    assert known(leaf.grad).tolist() == [2, 2, 2]
    assert any("made for this test" in note for note in notes)


@pytest.mark.parametrize("raised", [ZeroDivisionError, KeyboardInterrupt])
def test_a_call_that_could_not_begin_is_over(
    raised: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise raised

    fail.__code__ = fail.__code__.replace(co_filename=gradscope.__file__)
    with gradscope.watch():
        session = known(current())
        with monkeypatch.context() as patch:
            patch.setattr(Inspector, "walk", fail)
            with nullcontext() if issubclass(raised, Exception) else pytest.raises(raised):
                two_losses()[0].backward()
        assert session.state.call is None
        assert not session.state.running


def test_a_refused_call_is_over() -> None:
    first, second = two_losses()
    with gradscope.watch(raise_on="error") as scope:
        first.backward()
        with pytest.raises(gradscope.FreedGraphError) as refused:
            second.backward()
        session = known(current())
        assert session.state.call is None
        two_losses()[0].backward()
        calls = scope.recording().calls
    assert calls[-1].parent is None
    frames = "".join(traceback.format_tb(refused.value.__traceback__))
    assert "gradscope/collect" not in frames

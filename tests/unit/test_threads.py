"""Threads with graphs of their own: torch numbers the nodes of each thread from zero."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

import gradscope


def test_a_stale_graph_of_one_thread_is_not_blamed_on_another() -> None:
    """Both threads build nodes of the same numbers; the tensor that changes is saved by the second one's."""
    with gradscope.watch() as scope:
        bases = [torch.ones(3, requires_grad=True) * 1 for _ in range(2)]
        losses: dict[int, torch.Tensor] = {}
        built = [threading.Event(), threading.Event()]
        changed = threading.Event()

        def work(which: int) -> None:
            if which == 1:
                built[0].wait(10)
            losses[which] = (bases[which].exp() * bases[which]).sum()
            built[which].set()
            if which == 0:
                changed.wait(10)
                losses[0].backward()

        threads = [threading.Thread(target=work, args=(which,)) for which in range(2)]
        for thread in threads:
            thread.start()
        built[1].wait(10)
        with torch.no_grad():
            bases[1].add_(1)
        changed.set()
        for thread in threads:
            thread.join()
        assert not scope.findings
        assert scope.summary.backward_calls == 1


def test_a_new_thread_is_not_taken_for_one_that_has_ended() -> None:
    """Python gives it the same identity, and torch counts its nodes from zero again."""
    leaf = torch.ones(3, requires_grad=True)
    kept: list[torch.Tensor] = []

    def in_a_thread(work: Callable[[], object]) -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    def keep() -> None:
        (changed,) = torch._foreach_exp([leaf])  # shows nothing of what it saved
        kept.extend((changed.sin(), changed))

    with gradscope.watch() as scope:
        in_a_thread(keep)
        with torch.no_grad():
            kept[1].zero_()
        in_a_thread(lambda: torch._foreach_exp([leaf])[0].sum().backward())
    assert [finding for finding in scope.findings if finding.certainty == "certain"] == []

"""Threads with graphs of their own: torch numbers the nodes of each thread from zero."""

from __future__ import annotations

import threading

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

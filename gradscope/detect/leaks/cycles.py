"""Finds reference cycles that keep graphs alive: through ctx, a hook, or ``.grad``."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from torch import Tensor

from gradscope.code.stores import find_calls, find_store
from gradscope.model import Site
from gradscope.model.paths import Path
from gradscope.program.tensors import held_node, is_held_leaf
from gradscope.program.tracked import contexts, tracked
from gradscope.torch_private import DisableTorchFunction

_FEWEST = 3  # tensors in the same kind of cycle


@dataclass(frozen=True, slots=True)
class Cycle:
    """A kind of cycle: what closes it (``ctx``, ``hook``, ``grad``), a name, its line, how many."""

    kind: str
    name: str
    site: Site | None
    count: int


def find_cycle(*, creates: bool) -> Cycle | None:
    """Return the kind of cycle that keeps most graphs alive, of all that the collector tracks.

    ``creates``: the program has called ``backward(create_graph=True)``.
    """
    cycles = (_through_ctx(), _through_hooks(), _through_grad() if creates else None)
    found = (cycle for cycle in cycles if cycle is not None and cycle.count >= _FEWEST)
    return max(found, key=lambda cycle: cycle.count, default=None)


def _through_ctx() -> Cycle | None:
    counts = Counter(path for path, tensor in contexts() if _made_by_ctx(path, tensor))
    if not counts:
        return None
    ((name, count),) = counts.most_common(1)
    return Cycle("ctx", name.text, find_store((name,), container=False), count)


def _made_by_ctx(path: Path, tensor: Tensor) -> bool:
    """True when the tensor is an output of the very Function on whose ctx it was stored."""
    name = type(held_node(tensor)).__name__.removesuffix("Backward")
    return bool(name) and name in path.origin.function.split(".")


def _through_hooks() -> Cycle | None:
    counts: Counter[CodeType] = Counter()
    for each in tracked(Tensor):
        with DisableTorchFunction():
            installed = None if is_held_leaf(each) else each._backward_hooks
        for hook in tuple(installed.values()) if type(installed) is dict or installed else ():
            if isinstance(hook, FunctionType) and _closes_over(hook, each):
                counts[hook.__code__] += 1
    if not counts:
        return None
    ((code, count),) = counts.most_common(1)
    calls = find_calls(code.co_filename, "register_hook")
    around = [site for site in calls if site.line <= code.co_firstlineno <= site.end_line]
    candidates = around or (calls if len(calls) == 1 else ())
    site = candidates[0] if candidates else Site(code.co_filename, code.co_firstlineno)
    return Cycle("hook", code.co_name, site, count)


def _closes_over(hook: FunctionType, tensor: Any) -> bool:
    for cell in hook.__closure__ or ():
        try:
            if cell.cell_contents is tensor:
                return True
        except ValueError:  # an empty cell
            continue
    return any(default is tensor for default in hook.__defaults__ or ())


def _through_grad() -> Cycle | None:
    count = 0
    for each in tracked(Tensor):
        with DisableTorchFunction():
            count += is_held_leaf(each) and each.grad is not None and each.grad.requires_grad
    return Cycle("grad", ".grad", None, count) if count else None

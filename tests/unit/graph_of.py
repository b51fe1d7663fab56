"""A small converter for tests of pictures: real torch graphs to model.Graph, without the collecting layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from gradscope.collect.slots import saved
from gradscope.model import Edge, Graph, Node, NodeState, Root, SavedState, SavedTensor

_NAMES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.int64: "i64",
    torch.bool: "b8",
    torch.bfloat16: "bf16",
}


class Modules:
    """Notes which module was running between which sequence numbers."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.spans: list[tuple[int, int, str, str]] = []
        self._open: list[int] = []
        for name, module in model.named_modules():
            if name:
                module.register_forward_pre_hook(
                    lambda *_: self._open.append(torch._C._autograd._get_sequence_nr())
                )
                module.register_forward_hook(self._closer(name, type(module).__name__))

    def _closer(self, name: str, kind: str) -> Callable[..., None]:
        def close(*_: object) -> None:
            self.spans.append((self._open.pop(), torch._C._autograd._get_sequence_nr(), name, kind))

        return close

    def of(self, number: int) -> tuple[str | None, str | None]:
        inside = [span for span in self.spans if span[0] <= number < span[1]]
        span = min(inside, key=lambda s: s[1] - s[0], default=None)
        return (span[2], span[3]) if span else (None, None)


def graph_of(
    roots: Mapping[str, torch.Tensor],
    names: Mapping[str, torch.Tensor] | None = None,
    *,
    modules: Modules | None = None,
    built_after: Callable[[int], int] = lambda number: 0,
    freed_by: int | None = None,
) -> Graph:
    """The graph behind the named tensors."""
    known = {id(t): n for n, t in (names or {}).items()}
    index: dict[object, int] = {}
    order: list[Any] = []
    stack: list[Any] = [t.grad_fn for t in reversed(list(roots.values()))]
    while stack:
        node = stack.pop()
        if node in index:
            continue
        index[node] = len(order)
        order.append(node)
        stack.extend(
            n for n, _ in reversed(node.next_functions) if n is not None and n not in index
        )
    nodes, edges = [], []
    for number, node in enumerate(order):
        for nr, (target, _) in enumerate(node.next_functions):
            if target is not None:
                edges.append(Edge(number, index[target], nr))
        nodes.append(_node(number, node, known, modules, built_after, freed_by))
    return Graph(
        tuple(nodes),
        tuple(edges),
        tuple(Root(index[t.grad_fn], n, label(t)) for n, t in roots.items()),
    )


def label(tensor: torch.Tensor) -> str:
    return f"{_NAMES.get(tensor.dtype, '?')}[{', '.join(map(str, tensor.shape))}]"


def _node(
    number: int,
    node: Any,
    known: Mapping[int, str],
    modules: Modules | None,
    built_after: Callable[[int], int],
    freed_by: int | None,
) -> Node:
    variable = getattr(node, "variable", None)
    if variable is not None and node.name().endswith("AccumulateGrad"):
        name = known.get(id(variable))
        return Node(
            number,
            "AccumulateGrad",
            NodeState.BUFFERLESS,
            None,
            variable=name,
            variable_label=f"{name or ''} {label(variable)}".strip(),
        )
    found = []
    for attribute in dir(node):
        if not attribute.startswith("_raw_saved_"):
            continue
        value = saved(node, attribute.removeprefix("_raw_saved_"))
        for raw in value if isinstance(value, tuple) else (value,):
            name = attribute.removeprefix("_raw_saved_")
            tensor = raw.data if raw is not None else None
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                owner = known.get(id(tensor))
                found.append(
                    SavedTensor(
                        name,
                        tuple(tensor.shape),
                        _NAMES.get(tensor.dtype, "?"),
                        str(tensor.device),
                        storage.nbytes(),
                        storage.data_ptr(),
                        is_parameter=owner is not None and tensor.requires_grad and tensor.is_leaf,
                        source=owner,
                    )
                )
            elif freed_by is not None and raw is not None:
                found.append(SavedTensor(name, (), "?", "cpu", 0, state=SavedState.FREED))
    state = NodeState.BUFFERLESS
    if found:
        state = (
            NodeState.FREED if any(s.state is SavedState.FREED for s in found) else NodeState.LIVE
        )
    nr = node._sequence_nr()
    module, kind = modules.of(nr) if modules else (None, None)
    by = freed_by if state is NodeState.FREED else None
    return Node(
        number,
        node.name(),
        state,
        nr,
        tuple(found),
        None,
        module,
        kind,
        freed_by=by,
        built_after=built_after(nr),
    )

"""Walks backward graphs from ``grad_fn`` and pictures them as plain data; keeps no node, tensor or frame past the look."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.utils.checkpoint
from torch.autograd.graph import GradientEdge, Node
from torch.utils._dtype_abbrs import dtype_abbrs

from gradscope import model
from gradscope.collect.ledger import PLAIN, Packed, version_of
from gradscope.collect.marks import Stale, Token, token_of
from gradscope.model import Edge, Graph, NodeState, Root, SavedState
from gradscope.program.names import Names, is_parameter
from gradscope.program.sites import site_of
from gradscope.program.tensors import node_of

FREED_TEXT = "Trying to backward through the graph a second time"
_SAVED_ATTRIBUTE = "_raw_saved_"
_CHECKPOINT = torch.utils.checkpoint.__file__


class Kind:
    """What a Python type of nodes tells of its nodes."""

    __slots__ = ("is_compiled", "is_function", "is_leaf", "is_slices", "names", "saves")

    def __init__(self, kind: type) -> None:
        self.names = tuple(
            a[len(_SAVED_ATTRIBUTE) :] for a in dir(kind) if a.startswith(_SAVED_ATTRIBUTE)
        )
        self.is_leaf = kind.__name__ == "AccumulateGrad"
        self.saves = kind.__name__ not in ("AccumulateGrad", "CopyBackwards")
        self.is_slices = kind.__name__ == "CopySlices"
        """An in-place operation on a view. It wraps the operation's own node, which nobody can see, and drops it when freed."""
        self.is_function = issubclass(kind, torch._C._FunctionBase)
        self.is_compiled = self.is_function and kind.__name__ == "CompiledFunctionBackward"


known_kinds: dict[type, Kind] = {}


def kind_of(kind: type) -> Kind:
    """The kind for a type of nodes; types of Python Functions are not kept, as programs make them for ever."""
    known = known_kinds.get(kind)
    if known is None:
        known = Kind(kind)
        if not known.is_function:
            known_kinds[kind] = known
    return known


def root_node(output: Any) -> Node | None:
    """The node from which a backward of a tensor or ``GradientEdge`` starts; None for a leaf."""
    if isinstance(output, GradientEdge):
        return output.node
    return node_of(output)


def walk(roots: Iterable[Node], most: int) -> tuple[list[Node], dict[Node, int], int]:
    """The nodes reachable from ``roots`` in depth-first order, their places in it, and how many edges were left.

    Iterative; touches at most ``most`` nodes (a node seen from Python is later destroyed by recursion, so a
    chain of very many would overflow the stack when the program drops it).
    """
    nodes: list[Node] = []
    index: dict[Node, int] = {}
    stack = list(roots)
    stack.reverse()
    while stack:
        if len(nodes) >= most:
            return nodes, index, len(stack)
        node = stack.pop()
        if node in index:
            continue
        index[node] = len(nodes)
        nodes.append(node)
        for following, _ in reversed(node.next_functions):
            if following is not None and following not in index:
                stack.append(following)
    return nodes, index, 0


def edges_of(nodes: Sequence[Node], index: dict[Node, int]) -> list[tuple[Edge, ...]]:
    """The edges that leave each node, to nodes that were walked."""
    return [
        tuple(
            Edge(i, index[n], nr) for n, nr in node.next_functions if n is not None and n in index
        )
        for i, node in enumerate(nodes)
    ]


def will_run(
    edges: Sequence[tuple[Edge, ...]],
    order: Sequence[int],
    inputs: Iterable[int],
    captured_only: bool,
) -> list[bool]:
    """Which nodes the engine runs for ``inputs``: those on a path to one (torch/csrc/autograd/engine.cpp, ``init_to_execute``).

    ``order`` lists the nodes so that every node comes after the nodes its edges lead to. With ``captured_only`` (``autograd.grad``) the
    nodes of the inputs hand out their gradient without running; with ``backward(inputs=…)`` they run.
    """
    wanted = set(inputs)
    needed = [False] * len(edges)
    if not captured_only:
        for i in wanted:
            needed[i] = True
    for i in order:
        if not needed[i]:
            needed[i] = any(needed[e.target] or e.target in wanted for e in edges[i])
    return needed


def dependencies_last(edges: Sequence[tuple[Edge, ...]]) -> list[int]:
    """All nodes, each after the nodes that its edges lead to."""
    done = [0] * len(edges)
    order: list[int] = []
    for start in range(len(edges)):
        stack = [start]
        while stack:
            i = stack[-1]
            if done[i] == 2:
                stack.pop()
            elif done[i] == 1:
                done[i] = 2
                order.append(i)
                stack.pop()
            else:
                done[i] = 1
                stack.extend(e.target for e in edges[i] if not done[e.target])
    return order


def describe(tensor: torch.Tensor) -> str:
    """dtype and shape as in ``f32[8, 32]``."""
    with torch._C.DisableTorchFunction():
        return f"{_dtype(tensor)}[{', '.join(map(str, tensor.shape))}]"


def _dtype(tensor: torch.Tensor) -> str:
    return dtype_abbrs.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))


class Storages:
    """Numbers storages within one picture, so that shared memory shows."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def number(self, key: int) -> int:
        """The number of the storage with this address, from 1."""
        return self._numbers.setdefault(key, len(self._numbers) + 1)


def picture(
    nodes: Sequence[Node],
    index: dict[Node, int],
    roots: Sequence[Root],
    *,
    names: Names | None = None,
    left: int = 0,
    runs: Callable[[int], bool] = lambda index: True,
) -> Graph:
    """The walked nodes as plain data."""
    storages = Storages()
    drawn = tuple(_node(i, node, names, storages, runs(i)) for i, node in enumerate(nodes))
    edges = tuple(edge for leaving in edges_of(nodes, index) for edge in leaving)
    return Graph(drawn, edges, tuple(roots), left)


def _node(i: int, node: Node, names: Names | None, storages: Storages, runs: bool) -> model.Node:
    kind = kind_of(type(node))
    name = node.name().rsplit("::", 1)[-1]
    token = token_of(node)
    if kind.is_leaf:
        variable = node.variable  # type: ignore[attr-defined]
        called = names.of_tensor(variable) if names else None
        return model.Node(
            i,
            name,
            NodeState.BUFFERLESS,
            variable=called,
            variable_label=describe(variable),
            will_run=runs,
        )
    saved = [_saved(attribute, data, names, storages) for attribute, data in held(node, kind)]
    state = _state(node, kind, token, bool(saved))
    stale = any(s.state is SavedState.STALE for s in saved) or (
        token is None and bool(stale_by_engine(node, kind))
    )
    if stale and state in (NodeState.LIVE, NodeState.RETAINED):
        state = NodeState.STALE
    if (
        not saved
        and token is not None
        and token.graph is not None
        and token.index < len(token.graph.nodes)
    ):
        saved = [_with_state(s, SavedState.FREED) for s in token.graph.nodes[token.index].saved]
    unneeded = () if state is NodeState.FREED else _unneeded(kind, saved)
    if token is None:
        return model.Node(
            i, name, state, node._sequence_nr(), tuple(saved), will_run=runs, unneeded=unneeded
        )
    module, module_class = token.module or (None, None)
    return model.Node(
        i,
        name,
        state,
        node._sequence_nr(),
        tuple(saved),
        site_of(token.place),
        module,
        module_class,
        freed_by=token.freed_by.number if token.freed_by else None,
        built_after=token.generation,
        will_run=runs,
        unneeded=unneeded,
    )


def _unneeded(kind: Kind, saved: Sequence[model.SavedTensor]) -> tuple[str, ...]:
    """What a node of this kind may save and this one, which was not freed, did not."""
    names = {(s.name or "").partition("[")[0] for s in saved}
    return () if kind.is_function else tuple(name for name in kind.names if name not in names)


def _with_state(saved: model.SavedTensor, state: SavedState) -> model.SavedTensor:
    return replace(saved, state=state)


def _state(node: Node, kind: Kind, token: Token | None, has_saved: bool) -> NodeState:
    if has_saved:
        kept = (
            token is not None and token.call is not None and token.call.keep and not token.call.open
        )
        return NodeState.RETAINED if kept else NodeState.LIVE
    if token is not None and (token.freed_by is not None or token.has_buffers):
        return NodeState.FREED
    return NodeState.FREED if was_freed(node, kind) else NodeState.BUFFERLESS


def held(node: Node, kind: Kind) -> list[tuple[str, Any]]:
    """What the node saved and still has: (name, what a pack hook returned or the tensor itself). Unpacks nothing."""
    found = []
    for name in kind.names:
        try:
            value = getattr(node, _SAVED_ATTRIBUTE + name)
        except RuntimeError:  # the engine's own error for a list of saved tensors that was freed
            continue
        if isinstance(value, tuple | list):
            found += [
                (f"{name}[{i}]", s.data)
                for i, s in enumerate(value)
                if s is not None and s.data is not None
            ]
        elif value is not None and value.data is not None:
            found.append((name, value.data))
    return found


def was_freed(node: Node, kind: Kind) -> bool:
    """True when the node saved something that is gone now; asks torch itself, but never runs an unpack hook."""
    for name in kind.names:
        try:
            value = getattr(node, _SAVED_ATTRIBUTE + name)
            gone = not isinstance(value, tuple | list) and value is not None and value.data is None
            if gone and value.unpack_hook is None:
                getattr(node, "_saved_" + name)
        except RuntimeError as error:
            if FREED_TEXT in str(error):
                return True
        except AttributeError:
            continue
    return False


_VERSION = re.compile(r"is at version (\d+); expected version (\d+) instead")


def stale_by_engine(node: Node, kind: Kind) -> list[Stale]:
    """The node's saved tensors that were modified in place since, by the engine's own check.

    Unpacks what was saved without hooks, which runs nobody's code; what was saved under hooks is left alone.
    """
    found: list[Stale] = []
    if torch._C._len_torch_dispatch_stack():
        return found  # the program's mode would see the unpacking
    for name in kind.names:
        try:
            value = getattr(node, _SAVED_ATTRIBUTE + name)
        except RuntimeError:  # a freed list
            continue
        saved = [
            s for s in (value if isinstance(value, tuple | list) else (value,)) if s is not None
        ]
        if not saved or any(type(s.data) not in PLAIN or s.unpack_hook is not None for s in saved):
            continue  # freed, under hooks, or of a subclass, whose own code would see the unpacking
        try:
            getattr(node, "saved_tensors" if kind.is_function else "_saved_" + name)
        except RuntimeError as error:
            versions = _VERSION.search(str(error))
            if versions:
                found.append(Stale(saved[0].data, int(versions[2]), name))
    return found


def stale_inputs_of_checkpoint(packed: Packed) -> list[Stale]:
    """The stale inputs of a non-reentrant checkpoint, which its unpack hook will read to run the forward again.

    They are in no node: torch/utils/checkpoint.py keeps them as ``frame.saved_args``.
    """
    unpack: Any = packed.theirs[1] if packed.theirs is not None else None
    code = getattr(unpack, "__code__", None)
    if code is None or code.co_filename != _CHECKPOINT or "frame" not in code.co_freevars:
        return []
    frame = unpack.__closure__[code.co_freevars.index("frame")].cell_contents
    stale = []
    for argument in getattr(frame, "saved_args", ()):
        if not isinstance(argument, torch._C._autograd.SavedTensor):
            continue
        saved: Any = argument
        data = saved.data
        if isinstance(data, Packed):
            if data.tensor is not None and data.is_stale:
                stale.append(Stale(data.tensor, data.version))
        elif isinstance(data, torch.Tensor) and saved.unpack_hook is None:
            try:
                saved.unpack()
            except RuntimeError as error:
                versions = _VERSION.search(str(error))
                if versions:
                    stale.append(Stale(data, int(versions[2])))
    return stale


def _saved(name: str, data: Any, names: Names | None, storages: Storages) -> model.SavedTensor:
    shown = None if name.startswith("tensors[") else name
    packed = data if isinstance(data, Packed) else None
    tensor = packed.tensor if packed is not None else data
    if not isinstance(tensor, torch.Tensor):
        return model.SavedTensor(
            shown, (), "packed", "", 0, site=site_of(packed.place) if packed else None
        )
    with torch._C.DisableTorchFunction():
        parameter = is_parameter(tensor)
        try:
            storage = tensor.untyped_storage()
            key, nbytes = storage._cdata, storage.nbytes()
        except (NotImplementedError, RuntimeError):  # sparse and opaque tensors
            key, nbytes = id(tensor), 0
        stale = packed is not None and version_of(tensor) != packed.version
        return model.SavedTensor(
            shown,
            tuple(tensor.shape),
            _dtype(tensor),
            str(tensor.device),
            nbytes,
            storages.number(key),
            packed.version if packed is not None else tensor._version,
            SavedState.STALE if stale else SavedState.SAVED,
            parameter,
            names.of_tensor(tensor) if names else None,
            site_of(packed.place) if packed is not None else None,
        )

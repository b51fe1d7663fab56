"""Answers questions about any graph at any moment, with or without a watch.

What it is, as plain data (``snapshot``, ``saved_tensors``) or as a picture (``draw``, ``to_dot``),
and how two graphs differ (``compare``); what the engine would raise (``check``), and how each
tensor can still be used (``uses``); what becomes of it (``follow``), and which variables keep it
alive, by the names a user would type (``holders``).
"""

from __future__ import annotations

import itertools
import os
import re
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from types import FrameType, UnionType
from typing import Any, Literal, TypeAlias, Unpack

import torch
from torch.autograd.graph import GradientEdge
from torch.autograd.graph import Node as AutogradNode

from gradscope.api.watch import current, room
from gradscope.code.source import cell_of, shell_of_ipython
from gradscope.collect.calls import EngineCall
from gradscope.collect.inspector import Inspector
from gradscope.collect.marks import Packed
from gradscope.collect.nodes import are_whole, held, kind_of
from gradscope.collect.snapshot import picture
from gradscope.collect.state import State
from gradscope.collect.walk import Following, Walker, may_have_gradient, root_node
from gradscope.detect import hazards
from gradscope.errors import GradscopeError
from gradscope.formatting import escaped, listed
from gradscope.model import Graph, Hazards, Node, NodeState, Root, SavedState, SavedTensors, Site
from gradscope.model.graph import Change, Changes, Listing, Printed
from gradscope.model.variable_paths import Path
from gradscope.program.containers import derives
from gradscope.program.names import Names, names_in
from gradscope.program.reach import ON_DEMAND, Walk, paths_by_referrers, tensors_with_graph
from gradscope.program.sites import USER, frames_from, owner_of, user_frames
from gradscope.program.tensors import describe, held_node, node_of, storage_of, values_of
from gradscope.program.undisturbed import GCPaused
from gradscope.program.variables import frames_of_threads, variables
from gradscope.render.pictures import DrawOptions, Options, layout
from gradscope.render.pictures.compose import compose
from gradscope.render.pictures.draw import Drawing, draw_graphs
from gradscope.render.printing import table
from gradscope.torch_private import DisableTorchFunction


def snapshot(*roots: torch.Tensor | GradientEdge) -> Graph:
    """Return the backward graph of one or more tensors as plain data, as it is at this moment.

    Works on any graph, with or without a watch, and reads nothing that would run an unpack hook.
    Nodes come in depth-first order from the roots. A very deep graph is inspected only as far
    as the stack allows; ``Graph.not_looked_at`` counts the edges left.

    Raises GradscopeError for a root that has no graph (a leaf, or a result under ``no_grad``).
    """
    nodes = start_nodes(roots)
    session = current()
    names = session.state.names if session is not None else Names()
    frames = user_frames(sys._getframe(1))
    names.learn_variables(frames)
    walker = Walker(room())
    if session is not None:
        # Ties what the hooks saw to the nodes: sites, modules, generations.
        with DisableTorchFunction():
            session.inspector.walk(nodes)
    with GCPaused():  # torch makes objects that live with the graph
        following: list[Following] = []
        index = walker.walk(nodes, edges=following)
    named = names_in(frames[0], roots) if frames else [None] * len(roots)
    shown = [
        Root(index[node], name, describe(root) if isinstance(root, torch.Tensor) else "")
        for node, root, name in zip(nodes, roots, named, strict=True)
    ]
    return picture(index, shown, names=names, left=walker.left, following=following)


def start_nodes(roots: Sequence[Any]) -> list[AutogradNode]:
    """Return the node of each root. Raises GradscopeError for what has no graph."""
    if not roots:
        raise GradscopeError("no tensor given: pass the loss, or another tensor with a grad_fn")
    _refuse_others(roots, torch.Tensor | GradientEdge)
    nodes = []
    for place, root in enumerate(roots, 1):
        node = root_node(root)
        if node is None:
            reason = "it is a leaf" if root.requires_grad else "it does not require grad"
            raise GradscopeError(
                f"argument {place} has no backward graph: {reason}; pass a tensor with a grad_fn"
            )
        nodes.append(node)
    return nodes


def _refuse_others(
    given: Iterable[Any],
    kinds: UnionType | type,
    what: str = "argument",
    wanted: str = "pass tensors (or GradientEdges)",
) -> None:
    for place, each in enumerate(given, 1):
        if not isinstance(each, kinds):
            raise GradscopeError(f"{what} {place} is a {type(each).__name__}: {wanted}")


def saved_tensors(*roots: torch.Tensor | GradientEdge) -> SavedTensors:
    """Return all saved tensors of the graph of one or more tensors, each with the name of its node.

    Each knows its name in the derivative formula, shape, dtype, bytes, state (saved, retained,
    freed, stale) and, where a watch saw it, the line that saved it.

    Raises GradscopeError for a root that has no graph.
    """
    return SavedTensors(
        (node.name, saved) for node in snapshot(*roots).nodes for saved in node.saved
    )


_Inputs: TypeAlias = (
    torch.Tensor | GradientEdge | Iterable[torch.Tensor | GradientEdge] | dict[str, torch.Tensor]
)


def check(
    *roots: torch.Tensor | GradientEdge,
    inputs: _Inputs | None = None,
    kind: Literal["backward", "grad"] = "backward",
    retain_graph: bool | None = None,
    create_graph: bool = False,
) -> Hazards:
    """Return what the engine would raise if backward were called on ``roots`` now.

    It is empty when backward would run. The call meant is ``torch.autograd.backward`` or, with
    ``kind="grad"``, ``torch.autograd.grad``, which does not run the nodes of ``inputs``; all other
    arguments are those of that call; one that says ``allow_unused=True`` raises nothing for an
    input that nothing leads to. Nothing is run and nothing is changed. Without a watch it is not
    known which call freed a graph, nor which line built it.

    Raises GradscopeError for a root that is a leaf, and for ``grad`` without inputs.

    Example::

        gradscope.check(loss, inputs=[hidden], kind="grad")   # autograd.grad(loss, hidden)
    """
    _refuse_others(roots, torch.Tensor | GradientEdge)
    has_graph = all(map(may_have_gradient, roots))
    nodes = start_nodes(roots) if has_graph else []
    wanted, is_backward = _inputs(inputs, kind), kind == "backward"
    asked = EngineCall.of(
        *(roots, (), create_graph if retain_graph is None else retain_graph, create_graph),
        *(wanted, is_backward, is_backward),
    )
    session = current()
    with GCPaused():  # torch makes objects that live with the graph
        is_plain = session is None and not wanted and has_graph
        if is_plain and are_whole(Walker(room(0), room).walk(nodes)):
            return Hazards()
        inspector = Inspector(State()) if session is None else session.inspector
        return Hazards(hazards.foresee(inspector, asked, sys._getframe(1)))


def _inputs(inputs: Any, kind: str) -> tuple[Any, ...]:
    """Return the inputs of a call of this kind. Raises GradscopeError for what torch refuses."""
    if kind not in ("backward", "grad"):
        raise GradscopeError(f'kind is {kind!r}: it is "backward" or "grad"')
    if inputs is None and kind == "backward":
        return ()
    if isinstance(inputs, torch.Tensor | GradientEdge):
        return (inputs,)
    given = tuple(inputs.values() if isinstance(inputs, dict) else inputs or ())
    if not given:
        raise GradscopeError(
            f"no inputs given: pass the tensors that {kind} is to differentiate by"
        )
    _refuse_others(given, torch.Tensor | GradientEdge, "input")
    return given


Drawable: TypeAlias = torch.Tensor | GradientEdge | Graph


def draw(
    *roots: Drawable, file: str | os.PathLike[str] | None = None, **options: Unpack[DrawOptions]
) -> Drawing:
    """Draw the backward graph of one or more tensors in one picture, shared nodes drawn once.

    ``roots`` are tensors, ``GradientEdge`` objects, or graphs that ``snapshot`` gave; freed graphs
    are drawn as well. ``file`` ends in .svg, .png or .dot; without one the drawing shows
    itself in a notebook. The options:

    * ``focus``: ``shared``, the name of a node, module, leaf or root, or what a fold shows behind
      ``open:``;
    * ``depth`` folds the calls of modules at this depth of their path;
    * ``fold=False`` draws every node;
    * ``sites=True`` adds the source lines.

    Raises GradscopeError for a tensor without a graph, an unknown suffix, or a file that cannot be
    written.

    Example::

        gradscope.draw(loss_a, loss_b, file="shared.svg")
    """
    return draw_graphs(_graphs(roots), file, Options(**options))


def to_dot(*roots: Drawable, **options: Unpack[DrawOptions]) -> str:
    """Return the picture as DOT text, for any graphviz; roots and options are those of ``draw``.

    Raises GradscopeError for a tensor without a graph.
    """
    return layout.to_dot(compose(_graphs(roots), Options(**options)))


def _graphs(roots: Sequence[Drawable]) -> list[Graph]:
    """Return the graphs among the roots, then one of all the tensors, which is looked at now."""
    graphs = [root for root in roots if isinstance(root, Graph)]
    live = [root for root in roots if not isinstance(root, Graph)]
    if live or not roots:
        graphs.append(snapshot(*live))
    return graphs


_Identity = tuple[object, ...]


def compare(before: Graph, after: Graph) -> Changes:
    """Return the nodes and edges that two graphs share, and those that only one of them has.

    ``before`` and ``after`` are what :func:`gradscope.snapshot` returned, of the same tensor at two
    moments or of two tensors. Nodes are matched by torch's sequence number, so both graphs must
    have been built in one thread; the nodes of leaves are matched by the leaf's name.
    """
    old_keys, new_keys = _identities(before), _identities(after)
    old = dict(zip(old_keys, before.nodes, strict=True))
    new = dict(zip(new_keys, after.nodes, strict=True))
    old_edges, new_edges = _edges(before, old_keys), _edges(after, new_keys)
    changes = []
    for what, nodes in (
        ("stayed", [key for key in new if key in old]),
        ("added", [key for key in new if key not in old]),
        ("gone", [key for key in old if key not in new]),
    ):
        for key in nodes:
            was, now = old_edges.get(key, {}), new_edges.get(key, {})
            edges = [("stayed" if target in was else "added", name) for target, name in now.items()]
            edges += [("gone", name) for target, name in was.items() if target not in now]
            changes.append(Change(what, new.get(key) or old[key], tuple(edges)))
    return Changes(changes)


def _identities(graph: Graph) -> list[_Identity]:
    """Return what each node is matched by; leaves of one label and no name are numbered."""
    met: Counter[_Identity] = Counter()
    found: list[_Identity] = []
    for node in graph.nodes:
        key = (node.name, node.sequence_nr, node.variable, node.variable_label)
        found.append((*key, met[key]))
        met[key] += 1
    return found


def _edges(graph: Graph, keys: list[_Identity]) -> dict[_Identity, dict[_Identity, str]]:
    """Return the nodes that follow each node, with their names."""
    found: dict[_Identity, dict[_Identity, str]] = {}
    for edge in graph.edges:
        target = graph.nodes[edge.target]
        name = f"{target.name} of {target.variable}" if target.variable else target.name
        found.setdefault(keys[edge.source], {})[keys[edge.target]] = name
    return found


@dataclass(frozen=True, slots=True)
class Use:
    """Whether one tensor can be modified in place or run backward now, and why (not)."""

    name: str
    label: str
    in_place: bool
    in_place_why: str
    backward: bool
    backward_why: str


class Uses(Listing[Use]):
    """How each tensor can still be used; print it to read it."""

    __slots__ = ()
    nothing = "no variable here holds a tensor"

    def __str__(self) -> str:
        rows = []
        for use in self:
            in_place = _answer(use.in_place, use.in_place_why)
            rows.append((use.name, use.label, in_place, _answer(use.backward, use.backward_why)))
        header = ("tensor", "", "change in place?", "backward through it?")
        return table(header, rows) if rows else self.nothing

    __repr__ = __str__


def uses(*roots: torch.Tensor) -> Uses:
    """Return which of the caller's tensors, and which parameters of the graph, can be modified in
    place or run backward now.

    *Change in place*: without breaking a later backward call on ``roots``, which needs what its
    graph saved. *Backward*: through the tensor, or through what is built on it. The value of a
    tensor can be used at any time. What an object or a list holds is not listed, and what a C++
    custom function or a user's own pack hook keeps is not known here.

    Raises GradscopeError for a root that has no graph.
    """
    graph = snapshot(*roots)  # says what is wrong with the roots
    names = Names()
    names.learn_variables(user_frames(sys._getframe(1)))
    with DisableTorchFunction():
        nodes = Walker(len(graph.nodes)).walk(map(root_node, roots))
        savers, sources = _savers(nodes, names)
        del nodes
        found: dict[str, torch.Tensor] = {}
        for name, value in variables(sys._getframe(1)):
            if issubclass(type(value), torch.Tensor) and not name.startswith("_"):
                found.setdefault(name, value)
        listed_already = {storage_of(tensor) for tensor in found.values()}
        for name, tensor in sources.items():
            if storage_of(tensor) not in listed_already:
                found.setdefault(name, tensor)
        del graph, sources
        return Uses(_use(name, tensor, savers) for name, tensor in found.items())


def _savers(
    nodes: Iterable[AutogradNode], names: Names
) -> tuple[dict[int, list[str]], dict[str, torch.Tensor]]:
    """Which nodes saved each memory, as text; and the leaves among what they saved, by name."""
    savers: dict[int, list[str]] = {}
    leaves: dict[str, torch.Tensor] = {}
    for node in nodes:
        for name, data in held(node, kind_of(type(node))):
            tensor = data.tensor if isinstance(data, Packed) else data
            if not isinstance(tensor, torch.Tensor):
                continue
            key = storage_of(values_of(tensor))
            if key:
                saver = node.name().rsplit("::", 1)[-1]
                savers.setdefault(key, []).append(f"{saver} saved it as `{name}`")
            view_of = tensor._base if tensor._is_view() else None
            base = tensor if view_of is None else view_of  # what is saved is often `weight.t()`
            called = names.of_tensor(base)
            if called is not None and base.is_leaf:
                leaves.setdefault(called, base)
    return savers, leaves


def _use(name: str, tensor: torch.Tensor, savers: dict[int, list[str]]) -> Use:
    by = savers.get(storage_of(values_of(tensor)), [])
    why = listed(by, most=2)
    if not by and tensor.is_leaf and tensor.requires_grad:
        why = "under no_grad, as any leaf"
    backward, because = _backward(tensor)
    return Use(name, describe(tensor), not by, why, backward, because)


def _backward(tensor: torch.Tensor) -> tuple[bool, str]:
    if not tensor.requires_grad:
        return False, "it does not require grad"
    if tensor.is_leaf:
        return True, "a leaf, it saved nothing"
    hazards = check(tensor)
    if hazards:
        return False, _refused(tensor, hazards)
    again = all(node.state is NodeState.BUFFERLESS for node in snapshot(tensor).nodes)
    return True, "any number of times" if again else "once, unless retain_graph=True"


def _refused(tensor: torch.Tensor, hazards: Hazards) -> str:
    if hazards[0].code != "GS101":
        return f"what {listed(hazards[0].nodes)} saved was changed in place"
    freed = (node for node in snapshot(tensor).nodes if node.state is NodeState.FREED)
    calls = {node.freed_by for node in freed if node.freed_by}
    by = f" by call {min(calls)}" if len(calls) == 1 else ""
    return f"what {listed(hazards[0].nodes)} saved was freed{by}"


def _answer(yes: bool, why: str) -> str:
    return f"{'yes' if yes else 'no'}{', ' if yes and why else ': ' if why else ''}{why}"


# Nodes of a graph that ``follow`` marks, and that ``holders`` walks in all: each takes stack when
# it is destroyed, and 20,000 take 6.4 MB of the 8 MiB that a main thread has (``StackLimit``).
_MOST_WALKED = 20_000
_numbers = itertools.count(1)


class _Tag:
    """A mark on a node, which dies with the node: nothing else holds it."""

    __slots__ = ("__weakref__",)


class Life(Printed):
    """The nodes of one graph, and their present state; it keeps no part of the graph alive.

    Print it to see which nodes were destroyed, and what was freed of those that are still there.
    """

    def __init__(self, roots: tuple[torch.Tensor, ...], graph: Graph) -> None:
        self._key = f"gradscope life {next(_numbers)}"
        self._roots = [weakref.ref(root) for root in roots]
        self._graph = graph
        self._marks: list[weakref.ref[_Tag]] = []
        for node in Walker(len(graph.nodes)).walk(map(root_node, roots)):
            mark = _Tag()
            metadata: Any = node.metadata
            metadata[self._key] = mark
            self._marks.append(weakref.ref(mark))

    def now(self) -> Graph:
        """The graph as it was when it was followed, with each node in the state in which it is now.

        A node that is gone is ``destroyed``. What it held when it was last seen is ``dropped`` with
        it; whether a backward call had freed that since is not known.
        """
        there = self._there()
        nodes = tuple(
            _destroyed(node) if mark() is None else _renewed(node, there.get(node.index, node))
            for node, mark in zip(self._graph.nodes, self._marks, strict=True)
        )
        self._graph = replace(self._graph, nodes=nodes)
        return self._graph

    @property
    def destroyed(self) -> int:
        """How many of the nodes are gone."""
        return sum(mark() is None for mark in self._marks)

    def __str__(self) -> str:
        return str(self.now())

    __repr__ = __str__

    def _there(self) -> dict[int, Node]:
        """The nodes that a tensor still leads to, as they are now, by their number in the graph."""
        numbers = {id(mark): i for i, ref in enumerate(self._marks) if (mark := ref()) is not None}
        names = Names()
        names.learn_variables(user_frames(sys._getframe(1)))
        found: dict[int, Node] = {}
        walker = Walker(min(_MOST_WALKED, room()))
        with DisableTorchFunction():
            roots = (root for ref in self._roots if (root := ref()) is not None)
            for root in itertools.chain(roots, tensors_with_graph()):  # all others that have one
                if len(found) == len(numbers) or walker.room <= 0:
                    break
                index: dict[Any, int] = walker.walk([root_node(root)])
                marks = {i: node.metadata.get(self._key) for node, i in index.items()}
                own = {i: numbers[id(mark)] for i, mark in marks.items() if id(mark) in numbers}
                if own.values() - found.keys():
                    graph = picture(index, (), names=names)
                    found.update((number, graph.nodes[i]) for i, number in own.items())
        return found


def follow(*roots: torch.Tensor) -> Life:
    """Follow the graph of one or more tensors: which nodes are destroyed, and what is freed.

    Works with or without a watch, and keeps nothing alive: each node gets a mark that dies with it.

    Raises GradscopeError if a root is not a tensor with a graph, or for more than 20,000 nodes.

    Example::

        life = gradscope.follow(loss)
        loss.backward()
        print(life)     # nodes live on, their saved tensors are freed
        del loss
        print(life)     # nodes are destroyed
    """
    _refuse_others(roots, torch.Tensor, wanted="follow a tensor that has a grad_fn")
    graph = snapshot(*roots)
    if graph.not_looked_at or len(graph.nodes) > _MOST_WALKED:
        raise GradscopeError(
            f"this graph is too large to follow: it has more than {_MOST_WALKED:,} nodes"
        )
    return Life(roots, graph)


def _destroyed(node: Node) -> Node:
    saved = tuple(
        s if s.state.is_gone else replace(s, state=SavedState.DROPPED) for s in node.saved
    )
    return replace(node, state=NodeState.DESTROYED, saved=saved)


def _renewed(node: Node, now: Node) -> Node:
    """``node`` in its present state; what was freed is still told by name."""
    if now.state is NodeState.FREED and not now.saved:
        now = replace(now, saved=tuple(replace(s, state=SavedState.FREED) for s in node.saved))
    return replace(node, state=now.state, saved=now.saved, freed_by=now.freed_by)


# Tensors for which the garbage collector goes through all of Python's objects, once for each level
# of holders: with a list of many losses, each of them shares a part of the graph.
_MOST_SEARCHED = 16
_MOST_HOLDERS = 100  # names in the answer: a list of 1,000 losses has as many, which nobody reads


@dataclass(frozen=True, slots=True)
class Holder(Printed):
    """One name that keeps a tensor, or its graph, alive.

    ``kind`` says what the name starts from: ``local``, ``cell`` (a closure's variable), ``global``,
    ``class``, ``ctx`` (of an autograd Function) or ``unnamed``. ``site`` is where that is defined,
    or the function whose frame the name leads to. ``holds`` is ``tensor`` when the name leads to
    the tensor itself, ``graph`` or ``part of graph`` when it leads to another one that keeps all or
    part of its graph. ``help`` says how to release what Python or IPython keeps by itself.
    """

    path: str
    kind: str
    site: Site | None
    description: str
    holds: str = "tensor"
    help: str = ""

    def __str__(self) -> str:
        return escaped(f"{self.description}; {self.help}" if self.help else self.description)


class Holders(Listing[Holder]):
    """The names that keep a tensor, or its graph, alive."""

    __slots__ = ()
    nothing = "no variable holds it"


def holders(tensor: torch.Tensor, *, graph: bool = False) -> Holders:
    """Return the names that keep ``tensor`` alive, as a user would type them; with ``graph=True``,
    also those that keep its graph alive: of other tensors whose own graph shares a node with it,
    within a walk of 20,000 nodes.

    Works anywhere, with no watch.

    Raises GradscopeError if ``tensor`` is not a tensor.
    """
    if not derives(type(tensor), torch.Tensor):
        given = f"gradscope.holders() takes a tensor, not {type(tensor).__name__}"
        raise GradscopeError(f"{given}: give it one, such as the model's output")
    walk = Walk(ON_DEMAND, wanted=tensor)
    frames = _frames(sys._getframe(1))
    walk.enter_named(_attributes(sys, _LAST), "sys.")
    if (shell := shell_of_ipython()) is not None:  # it keeps the last exception, and its outputs
        walk.enter_named(_attributes(shell, ("last_execution_result",)), f"{_IPYTHON}.")
        shown = _attributes(getattr(shell, "InteractiveTB", None), ("tb",))
        walk.enter_named(shown, f"{_IPYTHON}.InteractiveTB.")
        walk.enter_named([(_IPYTHON, shell)], "", closed=True)
    walk.enter_frames(frame for frame in frames if owner_of(frame.f_code) == USER)
    walk.run()
    walk.enter_libraries(frame for frame in frames if owner_of(frame.f_code) != USER)
    walk.run()
    found, how = _sharing(tensor) if graph else ([tensor], ["tensor"])
    named: dict[tuple[str, Site | None], Holder] = {}
    for place in range(len(found)):
        paths = list(walk.paths_to(found[place]))
        if place < _MOST_SEARCHED:
            paths += paths_by_referrers(found[place], walk, {id(found)})
        for path in paths:
            holder = _holder(path, how[place])
            named.setdefault((holder.path, holder.site), holder)
    return Holders(list(named.values())[:_MOST_HOLDERS])


def _sharing(tensor: torch.Tensor) -> tuple[list[torch.Tensor], list[str]]:
    """The tensor and those that keep all or a part of its graph, with what each of them keeps."""
    walker, root = Walker(_MOST_WALKED), node_of(tensor)
    own: dict[AutogradNode, int] = {}
    apart: set[AutogradNode] = set()

    def walk(start: AutogradNode | None) -> dict[AutogradNode, int]:
        """The nodes from here down to nodes already known, without those of leaves.

        A leaf's node is shared by all graphs that use the leaf, and keeps nothing of them.
        """
        walked = walker.walk([start], enter=lambda node: node not in own and node not in apart)
        return {node: i for node, i in walked.items() if not kind_of(type(node)).is_leaf}

    own = walk(root)
    found, how = [tensor], ["tensor"]
    for other in tensors_with_graph():
        if other is tensor:
            continue
        walked = walk(held_node(other))
        if own.keys().isdisjoint(walked):
            apart.update(walked)
        else:
            found.append(other)
            how.append("graph" if root in walked else "part of graph")
    return found, how


def _frames(caller: FrameType) -> list[FrameType]:
    """The caller's frames, innermost first, then those of other threads."""
    here = threading.get_ident()
    others = [frame for thread, frame in frames_of_threads().items() if thread != here]
    stacks = map(frames_from, (caller, *others))
    return list(dict.fromkeys(itertools.chain.from_iterable(stacks)))


_IPYTHON = "get_ipython()"
_LAST = ("last_exc", "last_value", "last_traceback")
"""In ``sys``: the last exception that nobody caught, as an interactive Python keeps it."""
_OUTPUTS = re.compile(r"_{1,3}|_\d+|_oh|Out")


def _attributes(owner: object, names: Sequence[str]) -> list[tuple[str, object]]:
    found = ((name, getattr(owner, name, None)) for name in names)
    return [(name, value) for name, value in found if value is not None]


_WHAT = {
    "tensor": "this tensor",
    "graph": "a tensor that keeps this one's graph",
    "part of graph": "a tensor that keeps part of this one's graph",
}


def _holder(path: Path, holds: str) -> Holder:
    origin = path.origin
    framed = next((step.key for step in reversed(path.steps) if step.kind == "frame"), None)
    start = origin.prefix + path.root
    by_itself = start.startswith(("sys.", _IPYTHON))
    site, where = _defined(origin.file, origin.line, origin.function)
    of = {
        "local": f"a local variable of {origin.function}(){where}",
        "cell": f"a variable that the closure {origin.function}(){where} keeps",
        "global": start if by_itself else f"a global variable{where}",
        "class": f"the class {origin.function}{where}",
        "ctx": f"the ctx of the autograd Function {origin.function}{where}",
        "unnamed": "no variable leads to (a running iterator, a reference cycle or C++ keeps it)",
    }[origin.owner]
    if framed is not None:
        site, inside = _defined(framed.file, framed.line, framed.name)
        kept = f"which {of}" if origin.owner == "unnamed" else f"whose frame {of} keeps"
        of = f"from a local variable of {framed.name}(){inside}, {kept}"
    else:
        how = {"unnamed": "which", "ctx": "on"}.get(origin.owner, "from")
        of = f"{how} {of}"
    description = f"{path.text}, {of}, holds {_WHAT[holds]}"
    return Holder(path.text, origin.owner, site, description, holds, _help(path))


def _defined(file: str, line: int, function: str) -> tuple[Site | None, str]:
    """Return the site of a definition, and `` in train.py``; nothing where no file is known."""
    if not file:
        return None, ""
    file = file if file.startswith("<") else os.path.abspath(file)
    cell = cell_of(file)
    where = f" in {f'Cell {cell}' if cell else os.path.basename(file)}"
    return Site(file, max(1, line), function=function, cell=cell), where


def _help(path: Path) -> str:
    """Say how to let go of an exception's frames, and of what IPython has shown."""
    start, is_global = path.origin.prefix + path.root, path.origin.owner == "global"
    if is_global and path.origin.prefix == "sys." and path.root in _LAST:
        kept = ", ".join(f"sys.{name}" for name, _ in _attributes(sys, _LAST))
        return f"`del {kept}` lets go of it"
    steps = path.steps
    at = next((i for i, s in enumerate(steps) if s.kind == "frame" and s.key.raised), None)
    if at is None and is_global and shell_of_ipython() is not None:
        is_output = _OUTPUTS.fullmatch(path.root) or start.startswith(_IPYTHON)
        return "`%reset -f out` lets go of what cells have shown" if is_output else ""
    if path.origin.owner == "unnamed":
        return "`gc.collect()` lets go of it if only a reference cycle keeps it"
    if at is None:
        return ""
    while at and not (steps[at - 1].kind == "attribute" and _is_given(str(steps[at - 1].key))):
        at -= 1
    name = path.up_to(at).text
    return f"`{f'{name} = None' if at or path.origin.prefix else f'del {name}'}` lets go of it"


def _is_given(attribute: str) -> bool:
    """Return whether an attribute is one for others to set."""
    return attribute == "__traceback__" or not attribute.startswith("_")

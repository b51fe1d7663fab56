"""Which of the user's variables keep a backward graph alive, by the names a user would type."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

from torch import Tensor
from torch.autograd.graph import Node

from gradscope.code.places import cell_of, shell_of_ipython
from gradscope.collect.nodes import kind_of
from gradscope.collect.walk import Walker
from gradscope.errors import GradscopeError
from gradscope.model import Site
from gradscope.model.paths import Path
from gradscope.model.printed import Listing, Printed
from gradscope.program import layouts, referrers
from gradscope.program.reach import ON_DEMAND, Walk
from gradscope.program.referrers import tensors_with_graph
from gradscope.program.sites import USER, owner_of
from gradscope.program.tensors import held_node, node_of
from gradscope.program.variables import frames_of_threads
from gradscope.units import escaped

_MOST_NODES = 20_000
_MOST_SEARCHED = 16  # tensors for which the collector goes through all of Python's objects
_MOST_HOLDERS = 100


@dataclass(frozen=True, slots=True)
class Holder(Printed):
    """One name that keeps a tensor, or its graph, alive.

    ``kind`` says what the name starts from: ``local``, ``cell`` (a closure's variable), ``global``,
    ``class``, ``ctx`` (of an autograd Function) or ``unnamed``. ``site`` is where that is defined,
    or the function whose frame the name leads to. ``holds`` is ``tensor`` when the name leads to
    the tensor itself, ``graph`` or ``part of graph`` when it leads to another one that keeps all or
    part of its graph. ``help`` says how to let go of what Python or IPython keeps by itself.
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
    """Who keeps a tensor, or its graph, alive."""

    __slots__ = ()
    nothing = "no variable holds it"


def holders(tensor: Tensor, *, graph: bool = False) -> Holders:
    """Return the names that keep ``tensor`` alive; with ``graph=True`` also what keeps its graph:
    other tensors whose own graph shares a node with it, as a walk of 20,000 nodes shows.

    Works anywhere, with no watch.

    Raises GradscopeError for what is no tensor.
    """
    if not layouts.derives(type(tensor), Tensor):
        raise GradscopeError(
            f"gradscope.holders() takes a tensor, not {type(tensor).__name__}: "
            "give it one, such as the model's output"
        )
    walk = Walk(ON_DEMAND, wanted=tensor)
    frames = [*_frames(sys._getframe(1))]
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
            paths += referrers.paths_to(found[place], walk, {id(found)})
        for path in paths:
            holder = _holder(path, how[place])
            named.setdefault((holder.path, holder.site), holder)
    return Holders(list(named.values())[:_MOST_HOLDERS])


def _sharing(tensor: Tensor) -> tuple[list[Tensor], list[str]]:
    """The tensor and those that keep all or a part of its graph, with what each of them keeps."""
    walker, root = Walker(_MOST_NODES), node_of(tensor)
    own: dict[Node, int] = {}
    apart: set[Node] = set()

    def walk(start: Node | None) -> dict[Node, int]:
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


def _frames(caller: FrameType | None) -> Iterator[FrameType]:
    """The caller's frames, innermost first, then those of other threads."""
    here = threading.get_ident()
    others = [frame for thread, frame in frames_of_threads().items() if thread != here]
    for frame in (caller, *others):
        while frame is not None:
            yield frame
            frame = frame.f_back


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

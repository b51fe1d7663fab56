"""Backward graphs: nodes, edges, the tensors that nodes saved, and what two looks differ in.

A graph that was looked at has its nodes and edges as columns of numbers, and makes the objects that
are asked for: it has very many nodes and few forms of them.

It begins with how all data prints: the layers that show it register their forms here, and lists
print likewise.
"""

from __future__ import annotations

import math
import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from enum import StrEnum
from functools import singledispatch
from operator import attrgetter
from typing import Any, ClassVar, TypeVar, overload

from gradscope.formatting import escaped


@singledispatch
def text_of(value: object) -> str:
    """Return what ``print`` shows: the ``repr`` if no form is registered for the class."""
    return repr(value)


@singledispatch
def rich_forms(value: object) -> dict[str, str]:
    """Return further forms in which a notebook can show the value, by their MIME types."""
    return {}


class Printed:
    """Prints in the form that is registered for its class, and shows itself in a notebook."""

    __slots__ = ()

    def __str__(self) -> str:
        return escaped(text_of(self), keep="\n")

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": str(self), **rich_forms(self)}


T = TypeVar("T")


class Listing(Printed, tuple[T, ...]):
    """A tuple whose printed form is that of its entries, each on lines of its own."""

    __slots__ = ()
    nothing: ClassVar[str] = "nothing"

    __repr__ = Printed.__str__


@text_of.register
def _entries(listing: Listing) -> str:  # type: ignore[type-arg]
    return "\n".join(map(str, listing)) or listing.nothing


class NodeState(StrEnum):
    """The life of a node: what it saved is there, retained, freed, modified; or it is gone."""

    LIVE = "live"
    RETAINED = "retained"
    FREED = "freed"
    STALE = "stale"
    BUFFERLESS = "bufferless"
    DESTROYED = "destroyed"

    @property
    def is_whole(self) -> bool:
        """True while backward could run through the node again: it has all that it saved."""
        return self in (NodeState.LIVE, NodeState.RETAINED)


class SavedState(StrEnum):
    """The life of a saved tensor: there, retained, freed, modified, or dropped with its graph."""

    SAVED = "saved"
    RETAINED = "retained"
    FREED = "freed"
    STALE = "stale"
    DROPPED = "dropped"

    @property
    def is_gone(self) -> bool:
        """True once the graph has let go of the tensor."""
        return self in (SavedState.FREED, SavedState.DROPPED)


@dataclass(frozen=True, slots=True)
class Site:
    """A place in source code: lines and columns from 1, the end column behind the text.

    ``cell`` is the cell of a notebook that the code is from, as ``In[11]``; the file of a cell has
    a made-up name.
    """

    file: str
    line: int
    column: int = 1
    end_line: int = 0
    end_column: int = 0
    function: str = "<module>"
    cell: str = field(default="", compare=False)

    @property
    def place(self) -> str:
        """File name and line, as in ``train.py:41``; in a notebook ``Cell In[11], line 5``."""
        if self.cell:
            return f"Cell {self.cell}, line {self.line}"
        name = re.split(r"[/\\]", self.file)[-1]
        return f"{name}:{self.line}"

    @property
    def full_place(self) -> str:
        """The same with the file's whole path; a cell's file says nothing."""
        return self.place if self.cell else f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """One tensor that a node saved for its derivative.

    ``name`` is the derivative formula's own (``self``, ``weight``, ``result``), None where torch
    shows none; ``storage`` numbers the storage within one graph, so equal numbers mean shared
    memory; ``nbytes`` is that of the whole storage, which is what the graph keeps alive; ``source``
    is a parameter's or buffer's qualified name. ``alone`` says whether nothing but the graph held
    the storage then; None where that is not known. ``within`` are the lines of libraries by which
    ``site`` saved it, the outermost first.
    """

    name: str | None
    shape: tuple[int, ...]
    dtype: str
    device: str
    nbytes: int
    storage: int = 0
    version: int = 0
    state: SavedState = SavedState.SAVED
    is_parameter: bool = False
    source: str | None = None
    site: Site | None = None
    alone: bool | None = None
    within: tuple[Site, ...] = ()

    @property
    def label(self) -> str:
        """Name, dtype and shape as in ``self f32[8, 32]``."""
        kind = f"{self.dtype}[{', '.join(map(str, self.shape))}]"
        return f"{self.name} {kind}" if self.name else kind

    @property
    def is_view(self) -> bool:
        """Whether its elements are fewer than its storage has room for."""
        bits = re.match(r"[a-z]+(\d+)", self.dtype)
        return bits is not None and math.prod(self.shape) * int(bits[1]) < 8 * self.nbytes


def activation_bytes(saved: Iterable[SavedTensor]) -> int:
    """Return the bytes of saved activations, each storage counted once, parameters not counted."""
    return sum({s.storage: s.nbytes for s in saved if not s.is_parameter}.values())


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a backward graph; ``index`` is its place in ``Graph.nodes``.

    ``sequence_nr`` is torch's own: the order of creation within a thread, None for AccumulateGrad.
    ``variable`` is the qualified name of the leaf that an AccumulateGrad node feeds. ``freed_by``
    is the number of the backward call that freed the node, ``built_after`` that of the last
    backward call before the node was built. ``unneeded`` names the tensors that such a derivative
    may save, and that this one did not need for its inputs. ``differentiates`` names the node,
    with its place, that a backward call ran when it built this one (``create_graph=True``).
    """

    index: int
    name: str
    state: NodeState = NodeState.LIVE
    sequence_nr: int | None = None
    saved: tuple[SavedTensor, ...] = ()
    site: Site | None = None
    module: str | None = None
    module_class: str | None = None
    variable: str | None = None
    variable_label: str | None = None
    freed_by: int | None = None
    built_after: int = 0
    will_run: bool = True
    unneeded: tuple[str, ...] = ()
    differentiates: str = ""

    @property
    def is_leaf(self) -> bool:
        """True for an AccumulateGrad node, where a gradient arrives in ``.grad``."""
        return self.variable_label is not None

    @property
    def leaf_kind(self) -> str:
        """Dtype and shape of a leaf, which its label has after its name."""
        return (self.variable_label or "").removeprefix(self.variable or "").strip()

    @property
    def saved_bytes(self) -> int:
        """Bytes of the node's saved activations, as :func:`activation_bytes` counts them."""
        return activation_bytes(self.saved)


@dataclass(frozen=True, slots=True)
class Edge:
    """``source`` hands its gradient to input ``input_nr`` of ``target``: the backward direction."""

    source: int
    target: int
    input_nr: int = 0


@dataclass(frozen=True, slots=True)
class Root:
    """Where a backward call starts: a node, and the tensor's name in the code, dtype and shape."""

    node: int
    name: str | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class Graph(Printed):
    """A backward graph as seen at one moment, nodes in depth-first order from the roots.

    ``nodes`` and ``edges`` of a snapshot are made anew each time they are asked for; they compare
    as tuples do. ``not_looked_at`` counts edges at which the walk stopped as the graph was too
    deep.
    """

    nodes: Sequence[Node]
    edges: Sequence[Edge]
    roots: tuple[Root, ...]
    not_looked_at: int = 0

    @property
    def saved_bytes(self) -> int:
        """Bytes of saved activations that the graph still holds."""
        return activation_bytes(s for n in self.nodes for s in n.saved if not s.state.is_gone)


def _quickly(made: Any) -> Any:
    """Return what makes objects of a frozen class in a quarter of the time: a class of the same
    slots that is not frozen, and whose objects become of that class.
    """

    def become(draft: Any) -> None:
        draft.__class__ = made

    plain = [(f.name, Any, field(default=f.default)) for f in fields(made)]
    return make_dataclass(made.__name__, plain, slots=True, namespace={"__post_init__": become})


_node_of: Callable[..., Node] = _quickly(Node)
_saved_of: Callable[..., SavedTensor] = _quickly(SavedTensor)
_edge_of: Callable[..., Edge] = _quickly(Edge)


_before = attrgetter("name", "shape", "dtype", "device")
_behind = attrgetter("version", "state", "is_parameter", "source", "site")
_rest = attrgetter(*[f.name for f in fields(Node)][5:])
_ALONE = False, True, None
"""In a column, ``SavedTensor.alone`` is a place here."""


class Columns(Sequence[T]):
    """A sequence that equals the tuple of its objects; each is made anew when it is asked for."""

    __slots__ = ()

    def _at(self, i: int) -> T:
        raise NotImplementedError

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[T, ...]: ...
    def __getitem__(self, at: int | slice) -> T | tuple[T, ...]:
        places = range(len(self))[at]
        return tuple(map(self._at, places)) if isinstance(places, range) else self._at(places)

    def __iter__(self) -> Iterator[T]:
        return map(self._at, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple | Columns):
            return NotImplemented
        return tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


class Nodes(Columns[Node]):
    """Nodes in columns: which form each has, and its sequence number. A form is a node but for that
    number, its place, and the storages of what it saved.

    The storages of node i are those from ``starts[i]`` to ``starts[i + 1]``, each a row of
    ``nbytes`` and ``alone``; row 0 stands for what has none. What it has not, its form has.
    """

    __slots__ = ("alone", "forms", "nbytes", "numbers", "starts", "storages", "which")
    NONE = -1  # in a column

    def __init__(self) -> None:
        self.forms: list[Node] = []
        self.which, self.numbers = array("I"), array("q")
        self.starts, self.storages = array("I", [0]), array("I")
        self.nbytes, self.alone = array("q"), bytearray()

    def add(self, form: int, number: int | None) -> None:
        """Add a node whose storages are those that were added since the last one."""
        self.which.append(form)
        self.numbers.append(self.NONE if number is None else number)
        self.starts.append(len(self.storages))

    def weigh(self, nbytes: array[int], alone: Iterable[bool | None]) -> None:
        """Tell the bytes of all storages, and whether nothing but the graph holds them."""
        self.nbytes, self.alone = nbytes, bytearray(map(_ALONE.index, alone))

    def __len__(self) -> int:
        return len(self.which)

    def _at(self, i: int) -> Node:
        form, number = self.forms[self.which[i]], self.numbers[i]
        saved = form.saved
        if rows := self.storages[self.starts[i] : self.starts[i + 1]]:
            saved = tuple([self._saved(*each) for each in zip(saved, rows, strict=True)])
        known = None if number == self.NONE else number
        return _node_of(i, form.name, form.state, known, saved, *_rest(form))

    def _saved(self, form: SavedTensor, row: int) -> SavedTensor:
        alone = _ALONE[self.alone[row]]
        return _saved_of(*_before(form), self.nbytes[row], row, *_behind(form), alone, form.within)


class Edges(Columns[Edge]):
    """Edges in columns: those of node i are the ones from ``starts[i]`` to ``starts[i + 1]``."""

    __slots__ = ("numbers", "starts", "targets")

    def __init__(self) -> None:
        self.starts, self.targets, self.numbers = array("I", [0]), array("I"), array("I")

    def add(self, following: Iterable[tuple[Any, int]], index: Mapping[Any, int]) -> None:
        """Add those edges of one more node that lead to a node in ``index``."""
        for node, number in following:
            if (target := index.get(node)) is not None:
                self.targets.append(target)
                self.numbers.append(number)
        self.starts.append(len(self.targets))

    def __len__(self) -> int:
        return len(self.targets)

    def _at(self, i: int) -> Edge:
        return _edge_of(bisect_right(self.starts, i) - 1, self.targets[i], self.numbers[i])


class SavedTensors(Listing[tuple[str, SavedTensor]]):
    """The saved tensors of a graph, each with the name of its node."""

    __slots__ = ()
    nothing = "no saved tensor is there"


@dataclass(frozen=True, slots=True)
class Change:
    """One node, and whether it ``stayed``, was ``added`` or is ``gone``.

    ``edges`` are those that leave it: one of the same words, and the node that the edge leads to.
    """

    what: str
    node: Node
    edges: tuple[tuple[str, str], ...] = ()


class Changes(Listing[Change]):
    """The nodes of two graphs, those that stayed first; print it to read it."""

    __slots__ = ()

    @property
    def stayed(self) -> tuple[Node, ...]:
        """Nodes of both graphs, as they are in the later one."""
        return tuple(change.node for change in self if change.what == "stayed")

    @property
    def added(self) -> tuple[Node, ...]:
        """Nodes of the later graph only."""
        return tuple(change.node for change in self if change.what == "added")

    @property
    def gone(self) -> tuple[Node, ...]:
        """Nodes of the earlier graph only: the later one does not lead to them.

        :func:`gradscope.follow` shows whether they are alive.
        """
        return tuple(change.node for change in self if change.what == "gone")

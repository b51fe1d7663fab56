"""Walks backward graphs from ``grad_fn``, with room on the stack for their destruction; reads the
numbers of their nodes; and works out which nodes a call will run.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import ExitStack
from graphlib import TopologicalSorter
from operator import methodcaller
from typing import Any

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from gradscope.program.tensors import node_of, requires_grad
from gradscope.torch_private import ACCUMULATE_GRAD

if sys.platform == "linux":
    import resource

# Nodes that one look touches: what the largest stack (``StackLimit.LARGEST``) has room for.
MOST_NODES = 300_000

Targets = Sequence[tuple[int, ...]]
"""For each node the numbers of the nodes to which it hands gradients, an edge each."""
Following = Sequence[tuple[Node | None, int]]
"""The edges of a node, as its ``next_functions`` tells them: to which node, and to which input."""
Numbers = tuple[list[int], set[Node]]
"""The numbers of the nodes of a graph in depth-first order, 0 for leaves; and its nodes."""


torch_number: Callable[[Node], int] = methodcaller("_sequence_nr")
"""The sequence number of a node, as torch tells it."""


def root_node(output: Any) -> Node | None:
    """The node from which a backward of a tensor or ``GradientEdge`` starts; None for a leaf."""
    return output.node if isinstance(output, GradientEdge) else node_of(output)


def edge_of(output: Any) -> tuple[Node, int] | None:
    """Return the edge by which a tensor or ``GradientEdge`` has its gradient; None for a leaf."""
    node = root_node(output)
    return None if node is None else (node, output.output_nr)


def may_have_gradient(output: Any) -> bool:
    """Return whether a gradient of this tensor or ``GradientEdge`` can be asked for."""
    return not isinstance(output, Tensor) or requires_grad(output)


class Walker:
    """Walks graphs depth first, and touches no more than ``most`` nodes in all its walks together;
    where these are not enough, as many as ``more`` then says.

    A node that Python has seen is later destroyed by recursion, so a chain of very many would
    overflow the stack when the program drops it.
    """

    def __init__(self, most: int, more: Callable[[], int] = lambda: 0) -> None:
        self._more = more
        self.room = most
        """How many nodes may still be touched."""
        self.left = 0
        """How many edges were not followed for want of room."""

    def walk(
        self,
        roots: Iterable[Node | None],
        enter: Callable[[Node], bool] | None = None,
        edges: list[Following] | None = None,
    ) -> dict[Node, int]:
        """Return the nodes reachable from ``roots``, in depth-first order, each with its place in
        that order; add the edges of each to ``edges``.

        Do not follow the edges of a node for which ``enter`` returns False.
        """
        index: dict[Node, int] = {}
        stack = [root for root in roots if root is not None]
        stack.reverse()
        pop, push, room = stack.pop, stack.append, self.room
        while stack:
            if len(index) >= room:
                self.room = room = max(room, self._more())
                if len(index) >= room:
                    self.left += len(stack)
                    break
            node = pop()
            if node in index:
                continue
            index[node] = len(index)
            if enter is None or enter(node):
                own = node.next_functions
                if edges is not None:
                    edges.append(own)
                for following, _ in reversed(own):
                    if following is not None and following not in index:
                        push(following)
        self.room -= len(index)
        return index


def numbers_of(roots: list[Node], kinds: Sequence[type], oldest: int) -> Numbers | None:
    """Walk a graph as the full inspection does, and return its numbers and nodes; None if they are
    not of these ``kinds``, or one is older than ``oldest``.

    This runs at every call of a steady loop, so it has its own loop with local names.
    """
    numbers: list[int] = []
    seen: set[Node] = set()
    see, add = seen.add, numbers.append
    stack = roots[::-1]
    pop, push = stack.pop, stack.append
    try:
        for kind in kinds:
            node = pop()
            while node in seen:
                node = pop()
            see(node)
            if type(node) is not kind:
                return None
            if kind is ACCUMULATE_GRAD:
                add(0)
                continue
            number = node._sequence_nr()
            if number < oldest:
                return None
            add(number)
            for target, _ in reversed(node.next_functions):
                if target is not None:
                    push(target)
    except IndexError:  # it has fewer nodes
        return None
    return (numbers, seen) if seen.issuperset(stack) else None


class StackLimit:
    """Room on the main thread's stack for the destruction of deep graphs that were looked at.

    torch destroys a node that was ever seen from Python by recursion, with about 200 bytes of C
    stack a node (measured with torch 2.13: a chain of 40,000 nodes overflows 8 MiB). On Linux the
    main thread's stack grows up to the soft limit in force at the time, so raising that limit makes
    room; elsewhere only a smaller number of nodes may be touched.
    """

    BYTES_PER_NODE = 320  # half as many again as measured
    LARGEST = 96 << 20  # Linux keeps at least 128 MiB of address space free below the stack
    # 2.5 MB of the 8 MiB that a thread has on Linux, and 320 KB where it may have 512 KiB.
    OTHER_THREAD_NODES = 8_000 if sys.platform == "linux" else 1_000

    def __init__(self) -> None:
        self._raised = ExitStack()
        self.is_raised = False

    def room_for(self, nodes: int) -> int:
        """Return how many nodes may be touched in this thread, raising the limit if ``nodes`` needs
        it.
        """
        if sys.platform != "linux" or threading.get_ident() != threading.main_thread().ident:
            return self.OTHER_THREAD_NODES
        soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
        if soft == resource.RLIM_INFINITY:
            return self.LARGEST // self.BYTES_PER_NODE
        unlimited = hard in (-1, resource.RLIM_INFINITY)
        raised = self.LARGEST if unlimited else min(hard, self.LARGEST)
        if nodes * self.BYTES_PER_NODE > soft and soft < raised:
            resource.setrlimit(resource.RLIMIT_STACK, (raised, hard))
            self._raised.callback(self._lower, (raised, hard), (soft, hard))
            self.is_raised = True
            soft = raised
        return soft // self.BYTES_PER_NODE

    @staticmethod
    def _lower(ours: tuple[int, int], before: tuple[int, int]) -> None:
        if resource.getrlimit(resource.RLIMIT_STACK) == ours:  # not what the program has set since
            resource.setrlimit(resource.RLIMIT_STACK, before)

    def keep(self) -> None:
        """Leave the limit as it is now: nodes were touched of which nobody knows when they go."""
        self._raised.pop_all()
        self.is_raised = False

    def restore(self) -> None:
        """Put the limit back; only safe once the deep graphs are gone."""
        self._raised.close()
        self.is_raised = False


def reachable(targets: Targets, starts: Iterable[int], *, cut: Set[int] = frozenset()) -> list[int]:
    """Return the numbers of the nodes reachable from ``starts`` past the nodes ``cut``, in
    depth-first order.
    """
    found: dict[int, None] = {}
    stack = list(starts)[::-1]
    while stack:
        i = stack.pop()
        if i not in found and i not in cut:
            found[i] = None
            stack += reversed(targets[i])
    return list(found)


def targets_of(nodes: Sequence[Node], index: dict[Node, int]) -> Targets:
    """Return where the edges of each node lead, of those to nodes that were walked."""
    return [tuple([index[n] for n, _ in node.next_functions if n in index]) for node in nodes]


def will_run(
    targets: Targets, order: Sequence[int], inputs: Iterable[int], captured_only: bool
) -> list[bool]:
    """Return which nodes the engine runs for ``inputs``: those on a path to one of them.

    ``order`` lists the nodes so that every node comes after the nodes its edges lead to. With
    ``captured_only`` (``autograd.grad``) the nodes of the inputs hand out their gradient without
    running; with ``backward(inputs=…)`` they run.
    """
    wanted = set(inputs)
    needed = [False] * len(targets)
    if not captured_only:
        for i in wanted:
            needed[i] = True
    for i in order:
        if not needed[i]:
            needed[i] = any(needed[target] or target in wanted for target in targets[i])
    return needed


def dependencies_last(targets: Targets) -> list[int]:
    """All nodes, each after the nodes that its edges lead to."""
    return [*TopologicalSorter(dict(enumerate(targets))).static_order()]

"""Holds the trace of a rehearsal, and simulates it with tensors detached or graphs retained."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeAlias

from gradscope.code.statements import makes_leaves
from gradscope.fixing.instrumentation import Span
from gradscope.fixing.origins import Rehearsed
from gradscope.formatting import gathered, reached

Spot: TypeAlias = tuple[str, int]
"""A file and a line in it."""

Line: TypeAlias = tuple[Spot, ...]
"""A line of a call and the lines of its callers, innermost first: a function ``step(loss)`` that
calls backward on any loss counts as a different line for each of its callers.
"""

Kind: TypeAlias = "str | tuple[str, frozenset[Kind]]"
"""What an expression gave: ``tensor``, ``number`` (a tensor of one element), ``none``, ``other``,
or what a tuple, a list or a dict contains.
"""

Flow: TypeAlias = tuple[Spot, int]
"""A line whose calls train a leaf, and the leaf."""

Cut: TypeAlias = Callable[[int, int], bool]
"""Whether the edge from one node to another is cut."""

_NO_CUT: Cut = lambda node, following: False  # noqa: E731 - the default of several


class Event(NamedTuple):
    """One event of a rehearsal: a ``call`` of the engine, a ``step`` of an optimizer, or a
    ``change`` of a tensor in place.

    For a call: ``roots`` are the nodes that it starts from, and ``targets`` those that it asks for
    (None: all leaves). ``stale`` are nodes whose saved tensors were modified, each with the event
    that did it and the place that gave the tensor. ``cleared`` are the leaves that had no gradient
    when the call began. ``uses`` are the calls of ``autograd.grad`` from whose results the roots
    are computed.

    For a step: ``leaves`` are those that it has used; ``gradients`` has for each the sum of its
    gradient and the sum of the positive part.

    ``nodes`` is how many nodes there were then, and ``stack`` the program's lines that led to the
    event, innermost first.
    """

    kind: str
    site: Span
    roots: tuple[int, ...] = ()
    targets: tuple[int | None, ...] | None = None
    keep: bool = False
    accumulate: bool = True
    stale: tuple[tuple[int, int, int], ...] = ()
    cleared: tuple[int, ...] = ()
    uses: tuple[int, ...] = ()
    leaves: tuple[int, ...] = ()
    optimizer: int = -1
    nodes: int = 0
    stack: Line = ()
    gradients: tuple[tuple[float, float], ...] = ()

    @property
    def spot(self) -> Spot:
        """The file and the line."""
        return self.site.file, self.site.line

    @property
    def levels(self) -> list[Span]:
        """The place of the event, and the lines of the program that led there."""
        return [self.site, *(Span.at(*spot) for spot in self.stack)]


@dataclass(frozen=True)
class Trace(Rehearsed):
    """What a rehearsal recorded: one graph over all iterations, in which each evaluation of an
    expression (a *place*) that gave a tensor has a node of its own.

    A rehearsal is a run of the program whose expressions are wrapped (``instrumentation``), so that
    it is known which expression gave which tensor. ``Simulation`` then asks of this trace what
    would happen if some expression were detached, without running the program again.

    Of nodes: ``after`` are the nodes that each node leads to, ``made`` the place that built it (-1
    if unknown), ``saves`` whether it saved something, ``leaf`` the leaf that it accumulates into,
    and ``identities`` the place that it stands for. ``added`` are edges that an ``x += y`` made to
    the old ``x``, each with its place. ``kept`` are the nodes whose tensors stayed alive, when they
    were most.

    Of places: ``kinds`` is what each gave. ``held`` says, each time that a place gave a container
    or an object, how many nodes there were and which were in it; ``runs``, each time that it was
    evaluated, how many nodes there were before and after. ``moving`` places would give something
    else if they were evaluated once more, because they update a state from itself; ``varying`` ones
    draw random numbers or write to what exists. ``holders`` are the attributes of modules that held
    a tensor when calls began.

    ``heads`` are the first statements of functions and loops, and the engine's calls. For each of
    them, ``begun`` is how many nodes there were each time it began, ``bound`` the variables and
    attributes that always existed then, and ``empty`` those that were None at times.

    ``leaves`` are the names of the leaves, ``owners`` the optimizer of each leaf and its position
    there, ``optimizers`` the classes of these, and ``ended`` how the rehearsal ended.
    """

    places: Sequence[Span]
    kinds: dict[int, frozenset[Kind]] = field(default_factory=dict)
    after: list[list[int]] = field(default_factory=list)
    made: list[int] = field(default_factory=list)
    saves: list[bool] = field(default_factory=list)
    leaf: dict[int, int] = field(default_factory=dict)
    identities: dict[int, int] = field(default_factory=dict)
    added: dict[tuple[int, int], int] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    held: dict[int, list[tuple[int, tuple[int, ...]]]] = field(default_factory=dict)
    runs: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    moving: frozenset[int] = frozenset()
    varying: frozenset[int] = frozenset()
    leaves: Sequence[str] = ()
    owners: dict[int, tuple[int, int]] = field(default_factory=dict)
    optimizers: list[str] = field(default_factory=list)
    heads: Sequence[Span] = ()
    begun: dict[int, list[int]] = field(default_factory=dict)
    bound: dict[int, frozenset[str]] = field(default_factory=dict)
    empty: dict[int, frozenset[str]] = field(default_factory=dict)
    holders: dict[int, str] = field(default_factory=dict)
    ended: str = ""

    def reached(
        self, starts: Iterable[int], cut: Cut = _NO_CUT, at: set[int] | None = None
    ) -> set[int]:
        """Return the nodes that a call runs without the edges that are cut, all of which lead to
        the nodes ``at``, where these are known; -1 leads to a root.
        """
        after, seen = self.after, set[int]()
        at = set() if cut is _NO_CUT else at
        waiting = [start for start in starts if not cut(-1, start)]
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                following = after[node]
                if at is None or not at.isdisjoint(following):
                    following = [n for n in following if not cut(node, n)]
                waiting += following
        return seen

    def leading(self, seen: set[int], targets: set[int]) -> set[int]:
        """Return those of some nodes by which they lead to the targets."""
        before: dict[int, list[int]] = defaultdict(list)
        for node in seen:
            for following in self.after[node]:
                before[following].append(node)
        return {*reached(targets & seen, before.__getitem__)}

    def stepped_by(self, leaf: int) -> int:
        """Return the optimizer of a leaf; -1 if it has none."""
        return self.owners.get(leaf, (-1, 0))[0]

    def leaves_of(self, nodes: Iterable[int]) -> set[int]:
        """Return the leaves that some nodes accumulate into."""
        return {self.leaf[node] for node in nodes if node in self.leaf}

    @cached_property
    def given(self) -> dict[int, list[int]]:
        """The nodes that stand for each place."""
        return gathered(self.identities, self.identities.__getitem__)

    def read_at(self, places: Collection[int]) -> set[int]:
        """Return the nodes to which an edge leads where some places read a tensor, or add to it."""
        added = {node for (_, node), place in self.added.items() if place in places}
        return added.union(*(self.given.get(place, ()) for place in places))

    def read_by(self, node: int) -> tuple[int, ...]:
        """Return a node and, if it stands for a place, those down to that of the tensor read."""
        found = [node]
        while found[-1] in self.identities:
            found.append(self.after[found[-1]][0])
        return tuple(found)

    @cached_property
    def calls(self) -> tuple[int, ...]:
        """The indices of the engine calls."""
        return tuple(i for i, e in enumerate(self.events) if e.kind == "call")

    @cached_property
    def used_at_the_end(self) -> frozenset[int]:
        """The leaves of an optimizer in whose step the rehearsal ended. All leaves, where nothing
        steps them: then whoever reads their gradient does.
        """
        steps = [e for e in self.events if e.kind != "call" and e.leaves]
        if not steps or not self.calls:
            return frozenset(self.leaf.values())
        last, latest = self.events[self.calls[-1]], steps[-1]
        is_open = latest.optimizer >= 0 and latest.spot in last.stack[1:]
        return frozenset(
            n for n, own in self.owners.items() if is_open and own[0] == latest.optimizer
        )


class Option(NamedTuple):
    """The change to the program that is simulated.

    ``cuts``: places whose value is detached. ``head`` and ``names``: variables that are detached at
    the head of a function or loop, such as ``state = state.detach()`` at the start of an iteration.
    ``keeps``: calls, by their events, that retain their graph. ``clones``: places whose value is
    cloned. ``again``: nodes that are built once more, each time that the head begins, or only for
    the calls ``for_calls``. The new nodes are without the cuts; or, if ``late``, only they have the
    cuts.
    """

    cuts: frozenset[int] = frozenset()
    keeps: frozenset[int] = frozenset()
    head: int = -1
    names: frozenset[int] = frozenset()
    clones: frozenset[int] = frozenset()
    again: frozenset[int] = frozenset()
    for_calls: Collection[int] = ()
    late: bool = False


_UNCHANGED = Option()


class Simulation:
    """Replays the events of a rehearsal as they would be with a change.

    ``hazards`` are the calls, by their events, that would fail because they run through freed or
    stale nodes. ``fruitless`` calls would have nothing left to reach. ``flows`` are those whose
    gradients some step used, ``needed`` those for which that was the next step of the leaf's
    optimizer: a fix must not take them away.

    ``ran`` are the nodes of each call. ``fresh`` are those of them that were not freed before an
    earlier step of the same optimizer, nor built before one that has changed what the call needs:
    the others are a state carried from iteration to iteration, and each iteration has paths of its
    own without it. ``spent`` are those that have lost what they saved. ``rebound`` are targets of
    calls for which a variable stands no more. ``used`` are the calls whose gradients a step uses,
    for each leaf.
    """

    def __init__(self, record: Trace, change: Option = _UNCHANGED) -> None:
        self.record, self.change = record, change
        self.hazards: list[int] = []
        self.fruitless: list[int] = []
        self.flows: set[Flow] = set()
        self.needed: set[Flow] = set()
        self.ran: dict[int, set[int]] = {}
        self.fresh: dict[int, set[int]] = {}
        self.spent: dict[int, set[int]] = {}
        self.rebound: set[int] = set()
        self.used: dict[int, dict[int, set[int]]] = {}
        self._is_again, self._latest = False, -1
        self._carried = self._held_by_names()
        self._rebound: list[tuple[tuple[int, ...], int]] = []
        self._until: dict[int, int] = {}  # of what is built anew, the last node in a row with it
        for node in sorted(self.change.again, reverse=True):
            self._until[node] = self._until.get(node + 1, node)
        self._freed: set[int] = set()
        self._old: dict[int, set[int]] = defaultdict(set)
        self._windows: dict[int, int] = defaultdict(int)
        self._lost: dict[int, set[tuple[int, int]]] = defaultdict(set)
        self._ends: dict[int, set[int]] = defaultdict(set)
        self._since: dict[int, set[tuple[Spot, int, int, int]]] = defaultdict(set)
        self._asked: dict[int, set[int]] = defaultdict(set)
        read = self.record.read_at(self.change.cuts | self.change.names)
        self.cut_at = read.union(*self._carried.values())
        """The nodes to which an edge may be cut: only there a walk has to ask (``reached``)."""
        for index, event in enumerate(self.record.events):
            if event.kind == "call":
                self._call(index, event)
            elif event.leaves:
                self._step(index, event.leaves)
        self._step(len(self.record.events), self.record.used_at_the_end)

    def cut(self, node: int, following: int) -> bool:
        """Return whether the change cuts an edge: no gradient then flows through it."""
        change, record = self.change, self.record
        place = record.identities.get(following)
        is_old = self._carried and following in self._carried[self._turn(node)]
        if not is_old and place in change.names and (source := record.after[following]):
            latest = self._turn(following)
            is_old = latest >= 0 and source[0] < record.begun[change.head][latest]
        if is_old:
            self._rebound.append((record.read_by(following), node))
            return True
        if self._is_again is not change.late and following in change.again:
            return False
        added = record.added.get((node, following))
        if added in change.names and (latest := self._turn(node)) >= 0:
            return following < record.begun[change.head][latest]
        return place in change.cuts or added in change.cuts

    def _cuts_of(self, call: int) -> Cut:
        """Return a function that tells whether an edge is cut, and notes that this call has lost
        it.
        """

        def cut(node: int, following: int) -> bool:
            is_cut = self.cut(node, following)
            if is_cut:
                self._lost[call].add((node, following))
            return is_cut

        return cut

    def _turn(self, node: int) -> int:
        """Return how often the head had begun when a node was built, minus one."""
        return bisect_right(self.record.begun.get(self.change.head, ()), node) - 1

    def _turn_of(self, event: Event) -> int:
        """Return the turn in which the last node before an event was built."""
        return self._turn(event.nodes - 1)

    def _held_by_names(self) -> dict[int, set[int]]:
        """Return, for each turn of the head, the older nodes that the detached variables hold."""
        found: dict[int, set[int]] = defaultdict(set)
        begun = self.record.begun.get(self.change.head, ())
        for place in self.change.names:
            for time, nodes in self.record.held.get(place, ()):
                turn = self._turn(time)
                if turn >= 0:
                    found[turn] |= {node for node in nodes if node < begun[turn]}
        return found

    def _call(self, index: int, event: Event) -> None:
        record, change = self.record, self.change
        self._is_again = index in change.for_calls
        if (turn := self._turn_of(event)) > self._latest and change.again:
            self._latest = turn
            self._freed -= change.again
        self._rebound = []
        here = record.reached(event.roots, self._cuts_of(index), self.cut_at)
        targets = {t for t in event.targets or () if t is not None}
        rebound = [(read, node) for read, node in self._rebound if read[-1] in targets]
        self.rebound |= {read[-1] for read, _ in rebound}
        self._lost[index] -= {(node, read[0]) for read, node in rebound}
        if event.targets is not None:
            here = record.leading(here, targets | {node for _, node in rebound})
        self.ran[index] = here.union(*(read for read, _ in rebound))
        for step in (record.events[at] for at in {at for _, at, _ in event.stale if at >= 0}):
            if step.kind == "step":
                self._old[step.optimizer] |= {node for node in here if node < step.nodes}
        by = {record.stepped_by(leaf) for leaf in record.leaves_of(here)} or self._old.keys()
        old = [self._old[each] for each in by]
        self.fresh[index] = here - here.intersection(*old) if old else {*here}
        new = here & change.again if self._is_again else set[int]()
        kept = ((node, by) for node, by, place in event.stale if place not in change.clones)
        stale = {node for node, by in kept if not self._is_newer(node, by, turn)}
        self.spent[index] = {n for n in here & self._freed if record.saves[n]}
        spoilt = {n for n, by, _ in event.stale if n in stale and self._is_changed_within(n, by)}
        if self.spent[index] - new or (here & stale) - (new - spoilt):
            self.hazards.append(index)
        if self._is_fruitless(event, self.ran[index]):
            self.fruitless.append(index)
        if not event.keep and index not in change.keeps:
            self._freed |= here - new
        for leaf in event.cleared:
            self._since[leaf].clear()
        if event.targets is not None and not event.accumulate:
            self._ends[index] |= targets & self.ran[index]
            for target in self._ends[index] & record.leaf.keys():
                self._asked[record.leaf[target]].add(index)
            return
        spot = event.spot
        for last in here & record.leaf.keys():
            leaf = record.leaf[last]
            own = record.stepped_by(leaf)
            self._since[leaf].add((spot, index, last, self._windows[own]))

    def _is_newer(self, node: int, by: int, turn: int) -> bool:
        """Return whether a node is built once more after the event that modified what it saved."""
        again = node in self.change.again and by >= 0 and not self._is_changed_within(node, by)
        return again and self._turn_of(self.record.events[by]) < turn

    def _is_changed_within(self, node: int, by: int) -> bool:
        """Return whether the code that is run once more itself modifies what the node has saved."""
        return by >= 0 and self._until.get(node, -1) >= self.record.events[by].nodes

    def _is_fruitless(self, event: Event, here: set[int]) -> bool:
        leaf = self.record.leaf.keys()
        if event.targets is None:
            return not leaf & here
        asked = {t for t in event.targets if t is not None}
        own = (self.record.reached([t], self.cut, self.cut_at) for t in asked - self.rebound)
        is_led = makes_leaves(*event.spot) or all(leaf & each for each in own)
        return not asked <= here or not is_led

    def _step(self, index: int, leaves: Iterable[int]) -> None:
        self.used[index] = {}
        for leaf in leaves:
            calls = {call for _, call, _, _ in self._since[leaf]}
            self.used[index][leaf] = calls or self._asked.pop(leaf, set())
            for spot, call, last, window in self._since[leaf]:
                self.flows.add((spot, leaf))
                if window == self._windows[self.record.stepped_by(leaf)]:
                    self._ends[call].add(last)
                    self.needed.add((spot, leaf))
        for by in {-1, *map(self.record.stepped_by, leaves)}:
            self._windows[by] += 1
            self._old[by] |= self._freed

    def are_only_read(self, calls: Collection[int]) -> bool:
        """Return whether no step uses the gradients of some calls, nor anything computed from them:
        the program only prints or plots them.
        """
        used = {call for own in self.used.values() for each in own.values() for call in each}
        for call in reversed(self.record.calls):
            used |= {*self.record.events[call].uses} if call in used else set()
        return used.isdisjoint(calls)

    @cached_property
    def needed_nodes(self) -> dict[int, set[int]]:
        """The nodes by which each call computes the gradients that are needed from it."""
        return self._leading(self.fresh)

    @cached_property
    def used_nodes(self) -> dict[int, set[int]]:
        """The nodes by which each call computes the gradients that a step uses, needed or not."""
        return self._leading(self.ran)

    def _leading(self, nodes: dict[int, set[int]]) -> dict[int, set[int]]:
        """Return those of the nodes of each call by which it computes gradients that are used."""
        record, leaf = self.record, self.record.leaf.keys()
        ends = self._ends.items()
        return {call: record.leading(nodes[call] | to, to) - leaf for call, to in ends}

    def lost(self, changed: Simulation, but: Container[object] = ()) -> int:
        """Return how much a changed program would lose: the number of needed nodes that it would
        not run, plus the number of cut edges between them; ``but`` are calls that do not count.
        """
        needed = {call: nodes for call, nodes in self.needed_nodes.items() if call not in but}
        gone = sum(len(nodes - changed.ran[call]) for call, nodes in needed.items())
        return gone + changed.cut_in(needed)

    def cut_in(self, nodes: dict[int, set[int]]) -> int:
        """Return how many edges between some nodes of each call are cut."""
        return sum(nodes[call] >= {*edge} for call in nodes for edge in self._lost[call])

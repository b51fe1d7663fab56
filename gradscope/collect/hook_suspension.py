"""Suspends the saved-tensor hooks while iterations repeat, and resumes them for anything new.

Saved-tensor hooks cost time at every operation. While they are in force, a backward call is
*watched*: its graph is inspected in full, and what it saves and frees is counted. While they are
suspended, a call is *guarded*: a fast walk finds whether each node of its graph is of a known kind,
and whether all that the graph saved is there and unmodified. It needs no hooks and leaves no marks.

What guarded calls save and free is not counted but estimated, from the watched calls of the same
``CallPattern``, and only when somebody asks for totals.

``HookSuspension`` decides when the hooks are suspended and resumed. ``Recognizer`` makes the fast
walk, and learns from full inspections what it may skip.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch.autograd.graph import Node

from gradscope.collect import slots
from gradscope.collect.calls import (
    COUNTS,
    INPUTS,
    Call,
    CallPattern,
    CallSite,
    EngineCall,
    PatternKey,
    Reads,
    Shape,
    StepCount,
)
from gradscope.collect.generations import OTHER, CallHistory
from gradscope.collect.inspection import Inspection
from gradscope.collect.marks import KEY, Census, GraphMark, NodeMark
from gradscope.collect.nodes import (
    kind_of,
    packed_by_theirs,
    sizes_of,
    stale_by_engine,
    was_detached,
)
from gradscope.collect.walk import Numbers, StackLimit
from gradscope.program.sites import Place
from gradscope.program.tensors import PLAIN
from gradscope.torch_private import NO_SEQUENCE_NR, SAVED_TENSORS_ARE_READABLE

if TYPE_CHECKING:
    from gradscope.collect.state import State

# The largest graph that a fast walk recognizes, at about a microsecond a node. A call on a larger
# one is inspected in full each time.
_MOST_NODES = 50_000
_FEW_NODES = StackLimit.OTHER_THREAD_NODES  # no stack is too small for them
# Graphs that are remembered node by node, to tell where nodes of similar graphs were made. Each
# takes a tuple with one class for each node. When there are more, all are forgotten and learnt
# again.
_MOST_KNOWN = 200
# Kinds of calls, and kinds of nodes in one of them. Programs have tens of each, but one that
# defines a class of Function in a loop has new kinds of nodes without end:
#
#     for x in data:
#         class Scale(torch.autograd.Function): ...
#         Scale.apply(net(x)).sum().backward()
_MOST_PATTERNS, _MOST_KINDS = 1_000, 1_000
# How many known graphs, the newest, are searched for the neighbours of a node in a new graph.
# Higher: the node of a rare branch is more often given its line. Lower: a new graph costs less,
# since each of these graphs is gone through node by node.
_MOST_COMPARED = 16

# How many neighbours on either side must be the same to tell where a node was made. Four tell more
# lines apart: two layers of one kind have different neighbours. Two are tried if no known graph has
# the same four, as next to a part that is not in each iteration:
#
#     h = layer(x)
#     if step % 5 == 0:
#         h = h + noise()  # the nodes before and after it have new neighbours here
_REACHES = (4, 2)

_Window = tuple[type | None, ...]

_FUNCTION: Reads = (("function", "", "", None),)
_LEAF: Reads = (("leaf", "", "", None),)
_NUMBER: Reads = (("number", "", "", None),)
"""Stand for the saved tensors of a Python Function, which are read in a different way; for those of
a leaf, which has none; and for those that cannot be read: of such a node only its number tells
whether it was freed. That something it saved was modified since is left to the engine's own check.
"""


_Counts = tuple[Shape, bool, Numbers]
"""The shape of a graph, or of a graph like it; whether its own shape is new; and its numbers."""
_Read = tuple[set[Node], list[type], list[int], Mapping[int, int], int, int]
"""What the fast walk has read of a graph: its nodes, their kinds and sequence numbers in
depth-first order, which of them other threads have built, and how many tensors and bytes they
saved.
"""


class Recognizer:
    """Tells which graphs need no full inspection, from facts about single nodes.

    A graph is recognized if each of its nodes is of a kind that a full inspection has met in calls
    of the same pattern, and all that the nodes saved can be read without an error. The graph as a
    whole may be new: sequences of any length are recognized.
    """

    def __init__(
        self, history: CallHistory, census: Census, room_for: Callable[[int], int]
    ) -> None:
        self.is_mixed = False
        """Whether the last graph that was not recognized had nodes from before the hooks were
        suspended: such a graph is inspected in full, and is no reason to resume the hooks.
        """
        self._history, self._generations = history, history.generations
        self._census = census
        self._room_for = room_for
        self._patterns: dict[PatternKey, CallPattern] = {}
        self._known: dict[tuple[CallPattern, tuple[type, ...]], Shape] = {}
        self._reckoned: Sequence[int] = (0,) * len(COUNTS)  # of patterns that are forgotten

    def look(self, call: Call, asked: EngineCall, roots: Sequence[Node], *, guarded: bool) -> bool:
        """Walk the graph of a call fast, and return whether nothing in it is new, freed or stale.
        If so, note in the call what the walk has found.

        ``guarded``: the program has saved tensor hooks of its own, which may have packed what the
        graph saved.
        """
        self.is_mixed = False
        pattern = call.pattern
        known = pattern.shape
        if known is None or known.record is None or not roots:
            return False
        if asked.bare or asked.constant:
            return False
        oldest = min(pattern.ended, self._generations.step_before)
        read = self._read(roots, pattern, oldest, call.number - 1, guarded=guarded)
        if read is None:
            return False
        seen, kinds, numbers, elsewhere, tensors, nbytes = read
        if asked.unused(seen):
            return False
        for i, bits in elsewhere.items():
            numbers[i] += bits
            self._generations.see_built(numbers[i], counts=True)
        newest = self._generations.newest
        lowest = min(filter(None, numbers), default=newest)
        if lowest < oldest and sum(0 < number < oldest for number in numbers) > pattern.old:
            return False  # it grows from call to call
        is_old = lowest < newest or elsewhere
        call.fresh = (
            self._count_fresh(numbers, elsewhere) if is_old else len(numbers) - numbers.count(0)
        )
        call.shape, call.of_new_shape = self._like(known, pattern, kinds)
        call.size = pattern.scaled(tensors, nbytes)
        pattern.read(len(numbers), call.size)
        call.guarded, call.exact = True, False
        call.numbers = array("Q", numbers)
        return True

    def count(self, roots: Sequence[Node], pattern: CallPattern, oldest: int) -> _Counts | None:
        """Walk a graph of unknown shape, reading only kinds and numbers; None if a node is older
        than ``oldest``, or is of a kind that was not met before.
        """
        known = pattern.shape
        read = self._read(roots, pattern, oldest, 0, guarded=False, unread=True)
        if read is None or known is None or known.record is None:
            return None
        seen, kinds, numbers, *_ = read
        if min(filter(None, numbers), default=oldest) < oldest:
            return None
        return *self._like(known, pattern, kinds), (numbers, seen)

    def _like(
        self, known: Shape, pattern: CallPattern, kinds: Sequence[type]
    ) -> tuple[Shape, bool]:
        """Return the shape of a graph, or else a ``known`` one of its pattern; and whether its own
        is new.
        """
        own = self._known.get((pattern, tuple(kinds)))
        is_new = own is None or own.record is None
        return known if own is None or is_new else own, is_new

    def _count_fresh(self, numbers: Sequence[int], elsewhere: Iterable[int]) -> int:
        """Count the nodes that were built since the last call."""
        generations = self._generations
        fresh = sum(generations.newest <= number < OTHER for number in numbers)
        others = (numbers[i] for i in elsewhere)
        return fresh + sum(generations.of(number) == generations.latest for number in others)

    def pattern_of(self, key: PatternKey) -> CallPattern:
        """Return the pattern of these calls, a new one if there is none; forget all if there are
        too many.
        """
        pattern = self._patterns.get(key)
        if pattern is None:
            if len(self._patterns) >= _MOST_PATTERNS:
                self._reckoned = self.reckoned
                self._patterns.clear()
            pattern = self._patterns[key] = CallPattern()
        return pattern

    def begin_anew(self) -> None:
        """Require a full inspection of each kind of call before its graphs are recognized again."""
        for pattern in self._patterns.values():
            pattern.begin_anew()

    @property
    def reckoned(self) -> Sequence[int]:
        """Estimates what guarded calls have saved, freed and dropped, from the watched calls. In a
        loop, all that was saved and not freed is dropped sooner or later.
        """
        of_patterns = (each for pattern in self._patterns.values() for each in pattern.reckoned)
        sums = map(sum, zip(self._reckoned, *of_patterns, strict=True))
        saved, saved_bytes, freed, freed_bytes, returned, *_ = sums
        dropped = saved - freed - self._census.kept_tensors
        dropped_bytes = saved_bytes - freed_bytes - self._census.kept_bytes
        kept = saved, saved_bytes, freed, freed_bytes, returned
        return *kept, max(0, dropped), max(0, dropped_bytes)

    def learn(self, call: Call, look: Inspection) -> bool:
        """Learn from a full inspection what the fast walk needs to know; return whether that would
        have recognized this graph already.
        """
        pattern, shape = call.pattern, call.shape
        if len(look.nodes) > _MOST_NODES:
            return False
        known = pattern.shape is not None
        if len(pattern.reads) > _MOST_KINDS:
            pattern.reads.clear()
        for node, mark in zip(look.nodes, look.marks, strict=True):
            if type(node) not in pattern.reads:
                known = False
                pattern.reads[type(node)] = _reads_of(node, mark)
        pattern.shape = shape
        if self._generations.others:
            numbers = enumerate(mark.sequence_nr for mark in look.marks)
            shape.elsewhere = {i: n - n % OTHER for i, n in numbers if OTHER <= n < NO_SEQUENCE_NR}
        oldest = min(pattern.ended, self._generations.step_before)
        older = [mark for mark in look.marks if mark.sequence_nr < oldest]
        pattern.old = max(pattern.old, len(older))
        known = known and not any(mark.has_buffers for mark in older)
        if not call.exact or pattern.scale is None:
            key, sizes = (pattern, tuple(look.kinds)), list[int]()
            for node in () if key in self._known else look.nodes:
                of_node = sizes_of(node, kind_of(type(node)))
                if of_node is None:
                    pattern.reads[type(node)] = _NUMBER
                sizes += of_node or ()
            if sizes:
                pattern.scale = (look.tensors / len(sizes), look.nbytes / max(sum(sizes), 1))
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = shape
        return known and (SAVED_TENSORS_ARE_READABLE or not look.foreign)

    def places_of(self, kinds: tuple[type, ...], place: Place | None) -> list[Place | None]:
        """Return the lines that made the nodes of a graph, as far as known graphs of calls at
        ``place`` tell.

        If no known graph has the same kinds of nodes, a node was made where known nodes with the
        same kind and the same neighbours in depth-first order were made; None if these were made at
        several lines.
        """
        known = [s for s in self._known.values() if place in (None, s.signature.place)]
        same = [shape for shape in known if shape.signature.kinds == kinds]
        if same:
            return [*same[-1].signature.places]
        found: list[Place | None] = [None] * len(kinds)
        unknown: Sequence[int] = range(len(kinds))
        for reach in _REACHES:
            table: dict[_Window, set[Place | None]] = {}
            for shape in known[-_MOST_COMPARED:]:
                like = shape.signature
                for window, made in zip(_windows(like.kinds, reach), like.places, strict=True):
                    table.setdefault(window, set()).add(made)
            places = [table.get(window, set()) for window in _windows(kinds, reach)]
            for i in unknown:
                found[i] = next(iter(places[i])) if len(places[i]) == 1 else None
            unknown = [i for i in unknown if not places[i]]
        return found

    def _read(
        self,
        roots: Sequence[Node],
        pattern: CallPattern,
        oldest: int,
        calls: int,
        *,
        guarded: bool,
        unread: bool = False,
    ) -> _Read | None:
        """Walk a graph as the full inspection does, and read all that it saved, or nothing of that
        if ``unread``.

        Return None if a node of this thread that saves something is older than ``oldest``, or was
        built before the hooks were suspended, if one that cannot be read may have been freed by one
        of so many ``calls``, if a saved tensor cannot be read, or if a node is of a new kind. To
        read a tensor that was saved without hooks runs torch's own check of its version, and no
        code of the program. A tensor that hooks of the program have packed is not unpacked: the
        walk only finds whether it is there. This runs at every call of a steady loop, so it has its
        own loop with local names.
        """
        reads_of, youngest = pattern.reads.get, max(oldest, self._history.toggled)
        kinds: list[type] = []
        numbers: list[int] = []
        seen: set[Node] = set()
        see, add_kind, add_number = seen.add, kinds.append, numbers.append
        nbytes = tensors = 0
        most, tells = _FEW_NODES, SAVED_TENSORS_ARE_READABLE
        met: set[int] = set()
        late: list[int] = []
        unasked: list[int] = []
        others = bool(self._generations.others)
        stack = list(roots)[::-1]
        pop, push = stack.pop, stack.append
        try:
            while stack:
                node = pop()
                if node in seen:
                    continue
                see(node)
                kind = type(node)
                reads = reads_of(kind)
                if reads is None:
                    return None
                add_kind(kind)
                if len(kinds) > most:
                    most = min(_MOST_NODES, self._room_for(0))
                    if len(kinds) > most:
                        return None
                if reads is _LEAF:
                    add_number(0)
                    continue
                number = node._sequence_nr()
                add_number(number)
                following = node.next_functions
                for target, _ in reversed(following):
                    if target is not None:
                        push(target)
                if not reads or unread:
                    continue
                if number < youngest:
                    if not others:
                        self.is_mixed = number >= oldest
                        return None
                    late.append(len(kinds) - 1)
                if reads is _NUMBER:
                    unasked.append(number)
                    continue
                if reads is _FUNCTION:
                    own = kind_of(kind)
                    sizes = None if stale_by_engine(node, own) else sizes_of(node, own)
                    if sizes is None:
                        return None
                    tensors += len(sizes)
                    nbytes += sum(sizes)
                    continue
                for saved, name, raw, edge in reads:
                    if guarded and (packed := packed_by_theirs(node, saved, met)) != 0:
                        if packed is None:
                            return None
                        tensors += packed
                        continue
                    value = getattr(node, name) if tells else _unpacked(node, name)
                    values = value if (listed := type(value) is tuple) else (value,)
                    bare = []
                    for at, each in enumerate(values):
                        if each is None:
                            continue
                        if type(each) not in PLAIN:
                            return None  # a tensor subclass, whose code is not to run
                        tensors += 1
                        if not each.requires_grad:
                            bare.append(at)
                        elif (each if (base := each._base) is None else base).is_leaf:
                            continue  # of a parameter, which costs the graph no memory
                        nbytes += each.nbytes
                    if bare and tells and (listed or edge is None or following[edge][0]):
                        held = getattr(node, raw) if listed else (getattr(node, raw),)
                        if any(was_detached(held[at], values[at]) for at in bare):
                            return None
        except RuntimeError:  # freed or stale
            return None
        shape = self._known.get((pattern, tuple(kinds))) if others else None
        elsewhere = {} if shape is None else shape.elsewhere
        older = [numbers[i] for i in late if i not in elsewhere]
        if older:
            self.is_mixed = min(older) >= oldest
            return None
        is_old = bool(unasked) and min(unasked) < self._generations.newest
        if is_old and (others or self._history.may_have_freed(unasked, calls, oldest)):
            return None
        return seen, kinds, numbers, elsewhere, tensors, nbytes


def _windows(kinds: tuple[type, ...], reach: int) -> list[_Window]:
    """Return for each node its kind and the kinds of ``reach`` neighbours on either side."""
    padded = (*(None,) * reach, *kinds, *(None,) * reach)
    return [padded[i : i + 2 * reach + 1] for i in range(len(kinds))]


def _unpacked(node: Node, name: str) -> Any:
    """Read what a node saved if this torch does not tell of a saved tensor what it holds."""
    value, by_hooks = slots.unpacked(node, name)
    if by_hooks:
        slots.let_go(value, by_hooks)
    return value


def _reads_of(node: Node, mark: NodeMark) -> Reads:
    """Return what to read of nodes of this kind."""
    kind = kind_of(type(node))
    sizes = sizes_of(node, kind)
    if kind.is_slices or kind.is_unnamed or sizes is None or len(sizes) < len(mark.packs):
        return _NUMBER  # the hooks saw more than can be read
    return _LEAF if kind.is_leaf else _FUNCTION if kind.is_function else kind.reads


# Consecutive calls on known structures after which the hooks are suspended. Before the first
# optimizer step, calls may be micro-batches of one iteration, so three times as many are needed;
# leaks are judged after the same numbers.
_ALIKE, _ALIKE_WITHOUT_STEPS = 8, 24
# The same once these calls had this many nodes in all: hooks cost more there, and as many saved
# tensors were seen. With the numbers above, the first 30 iterations of 1,000 scalar operations
# took 0.7 to 0.9 s more than without a watch; with these, and fewer tensors compared at each
# line, 0.3 to 0.5 s.
_FEWER, _FEWER_WITHOUT_STEPS, _MUCH = 3, 9, 1_500
# After this many guarded calls, three are watched again to correct the estimates: what iterations
# save may change slowly, as with sequences that become longer. Three in 2,000 cost little.
_RENEWED, _WATCHED_AGAIN = 2_000, 3
# Calls that are watched at most after an unusual number of nodes was built beside the graphs. They
# are watched until as many come again, because what such an iteration leaves is then known:
#
#     for epoch in range(100):
#         train(net, batches)
#         evaluate(net, held_out)  # without no_grad(): builds graphs that no call runs
#
# Something that comes only once must not keep the hooks in force for good.
_LONGEST_WAIT = 2_000
# Calls of each kind, after the hooks were suspended, that set how many graphs are alive at the most
# in a healthy iteration. If more live after that, the hooks are resumed to see what keeps them.
_SETTLING = 4
# How many times as many nodes as ever before may be built between two calls beside their graphs: an
# evaluation of random length must not resume the hooks each time that it is the longest so far.
_TOLERANCE = 1.5


class HookSuspension:
    """Decides when the saved-tensor hooks of the watch's own thread are suspended and resumed.

    They are suspended after several consecutive calls met nothing new (``after_hooked``). They are
    resumed as soon as anything differs (``after_guarded``, ``leave``), and never suspended again
    once something runs that the fast walk cannot see (``block``): another thread, or hooks that
    cannot be told apart.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._ledger, self._census = state.ledger, state.census
        self._history, self._generations = state.history, state.generations
        self.on = False  # whether the hooks are suspended now
        self.leaves = False
        """Whether nodes may live that were built without hooks, and that no call has freed."""
        self.pending = 0
        """How many such nodes a call may still run, as far as that is known."""
        self._may_leave = False
        """Whether only the next call can tell ``leaves``, because the hooks were resumed before it.
        """
        self.blocked = not state.hooked  # whether the hooks must never be suspended (again)
        self.doubts = set[object]()
        """Observers that see something grow from call to call: only the hooks show what it is."""
        self.leaks = False
        """Whether a leak was reported: what it leaves at each call is then expected."""
        self.theirs_entered = False
        """Whether the program has entered hooks of its own since they were suspended."""
        self.sites: dict[tuple[int, int], CallSite] = {}
        """Where calls are counted, by the identity of the code, and the instruction in it."""
        self.resting: dict[int, StepCount | None] = {}
        """Optimizers whose steps are only counted for now, by their identity."""
        # By kind of call: how many calls since, and the most graphs that were alive after one.
        self._alive: dict[CallPattern, tuple[int, int]] = {}
        self._counted = state.ledger.counts()
        self._guarded_before = 0
        """How many guarded calls there were when the hooks were suspended last."""
        self._alike = self._alike_nodes = 0
        self._awaited: tuple[CallPattern, int] | None = None
        self._wait_until = self._last_odd = 0

    # what suspends the hooks

    def after_hooked(self, call: Call, *, alike: bool) -> None:
        """Suspend the hooks if enough consecutive watched calls were on graphs of known shapes.

        ``alike`` is False for a call after which things may not go on as before, whatever its graph
        looks like.
        """
        self._count(call)
        if self._may_leave:
            self._may_leave = False
            self.leaves = self._leaves_any(call)
        pattern = call.pattern
        alive = self._ledger.live_tensors, self._census.alive - call.fresh
        bounded = pattern.bounds(*alive, leaks=self.leaks)
        if self.on:  # a graph that was built in part before they were suspended
            return
        same = alike and bounded and not call.woken
        self._alike = self._alike + 1 if same else 0
        self._alike_nodes = self._alike_nodes + call.fresh if same else 0
        if self._awaited is not None:
            waited_for, number = self._awaited
            if (waited_for is pattern and call.extra >= number) or call.number >= self._wait_until:
                self._awaited = None
        with_steps, without = _ALIKE, _ALIKE_WITHOUT_STEPS
        if self._alike_nodes >= _MUCH:
            with_steps, without = _FEWER, _FEWER_WITHOUT_STEPS
        needed = with_steps if call.steps else without
        if self._alike < needed or self._awaited is not None or self.doubts or self.blocked:
            return
        if call.parent is None:  # the engine forgets what is done to its stack of hooks
            self.suspend()

    def suspend(self) -> None:
        """Suspend the hooks, if nothing forbids it."""
        if not (self.on or self.blocked) and self._state.hooks.suspend():
            self.on = True
            self.theirs_entered = False
            self._guarded_before = self._state.guarded
            self._alive.clear()
            self._history.toggle(self._state.calls)

    def _count(self, call: Call) -> None:
        """Note in the call's pattern what the ledger has counted since the watched call before."""
        counted = self._ledger.counts()
        pairs = zip(counted, self._counted, strict=True)
        counts = tuple(now - then for now, then in pairs)
        self._counted = counted
        call.pattern.watch(call, counts)

    # while they are suspended

    def begin(self, root: Node, numbers: Sequence[int], kept: tuple[int, int]) -> None:
        """Count the nodes of a recognized graph as alive for as long as its root lives, and the
        tensors and bytes that a call leaves in it.
        """
        metadata: Any = root.metadata  # a property, though its stub says a method
        if GraphMark.KEY not in metadata:
            mark = metadata.get(KEY)  # gradscope.snapshot() may have marked it: it is counted then
            is_counted = mark is not None and mark.census is self._census
            nodes = 0 if is_counted else self._history.count_new(numbers)
            metadata[GraphMark.KEY] = GraphMark(self._census, nodes)
        metadata[GraphMark.KEY].keep(*kept)

    def after_guarded(self, call: Call) -> bool:
        """Remember a guarded call that has ended, and resume the hooks if it was not like the
        watched calls; return whether more nodes live than after those.
        """
        self._note_left(call)
        self._history.add(call)
        ledger, extra = self._ledger, call.built - call.fresh
        if ledger.live_bytes + call.size[1] > ledger.highest_bytes:  # its graph was alive at least
            ledger.highest_bytes = ledger.live_bytes + call.size[1]
        if call.pattern.pace:
            call.pattern.go_on()
        if self._has_outgrown(call):
            self._resume()
            return True
        if call.woken or not call.completed:
            self._resume()
        elif extra > call.pattern.extra * _TOLERANCE:
            self._odd(call)
        elif self._state.guarded - self._guarded_before >= _RENEWED * (1 + bool(self.pending)):
            self._resume()
            self._alike = max(0, _ALIKE_WITHOUT_STEPS - _WATCHED_AGAIN)
        return False

    def _note_left(self, call: Call) -> None:
        """Note the nodes that a guarded call has left, and those left by others that it freed."""
        newest = call.sequence_nr - call.built  # when the call before had ended
        older = [number for number in call.numbers if 0 < number < newest]
        is_alone = call.parent is None and not call.within
        is_told = is_alone and call.completed and (call.keep or self._frees_all(call))
        if self._generations.others and (call.keep or call.builds):
            is_told = False  # what their threads build in the call is not counted here
        if not is_told or (
            older and self._history.may_have_freed(older, call.number - 1, min(older))
        ):
            self.leaves = self.leaves or self._leaves_any(call)
        else:
            freed = 0 if call.keep else call.fresh + len(older)
            self.pending += call.built + self._generations.own_next - call.sequence_nr - freed

    def _leaves_any(self, call: Call) -> bool:
        """Return whether nodes may live after a call that it has not freed."""
        return call.built > call.fresh or call.builds or not self._frees_all(call)

    @staticmethod
    def _frees_all(call: Call) -> bool:
        """Return whether a call has run and freed its whole graph."""
        return call.completed and not (call.keep or call.shape.signature.asked & INPUTS)

    # what resumes the hooks

    def _has_outgrown(self, call: Call) -> bool:
        """Return whether more recognized graphs are alive than after earlier calls of this kind,
        and more nodes than ever before: the program has begun to keep graphs.
        """
        pattern, alive = call.pattern, self._census.graphs
        calls, most = self._alive.get(pattern, (0, 0))
        if calls < _SETTLING:
            self._alive[pattern] = (calls + 1, max(most, alive))
            return False
        return alive > most and self._census.alive - call.fresh > pattern.alive[1]

    def _odd(self, call: Call) -> None:
        """Resume the hooks until one call again has as many extra nodes as this one, or until
        ``_LONGEST_WAIT`` calls have come; twice the time since the last such call is enough.
        """
        self._awaited = (call.pattern, call.extra)
        self._wait_until = call.number + min(2 * (call.number - self._last_odd), _LONGEST_WAIT)
        self._last_odd = call.number
        self._resume()

    def before_theirs(self) -> None:
        """Take note that the program enters saved-tensor hooks of its own, which a walk must not
        run.
        """
        self.theirs_entered = True
        self.read_next()
        if not SAVED_TENSORS_ARE_READABLE:
            self.leave()

    def read_next(self) -> None:
        """Read, instead of count, the next call at each line."""
        for site in self.sites.values():
            site.left = 0

    def block(self) -> None:
        """Never suspend the hooks again: something runs that the fast walk cannot see.

        They are resumed at the next backward call, because only their own thread can do that.
        """
        self.blocked = True
        self.read_next()

    def leave(self) -> None:
        """Resume the hooks between two calls: what was built since the first call may be alive."""
        if self.on:
            self._may_leave = not self.leaves
            self.leaves = True
            self._resume()

    def _resume(self) -> None:
        if not self.on:  # a call within this one has done it
            return
        self.on = False
        self.resting.clear()
        self.read_next()
        self._alike = self._alike_nodes = 0
        self._state.hooks.resume()
        self._history.toggle(self._state.calls)
        number = self._generations.own_next
        for shape in self._history.shapes:
            for place in shape.signature.places:
                if place is not None:  # it ran in every iteration, so it has by now
                    place.last_sequence_nr = number

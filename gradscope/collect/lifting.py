"""Lifts the saved-tensor hooks while iterations repeat, and puts them back for anything new.

While they are in force, a call is *watched*: its graph is looked at in full, and what it saves and
frees is counted. While they are lifted, calls are *guarded*: a bare walk asks of each graph whether
all of it is there, unmodified and of known kinds. What such calls save and free is reckoned by what
was counted with those of their kind that were watched, and only when somebody asks for totals.

The walk reads what the nodes saved, with no hooks and no marks.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import Node

from gradscope.collect import slots
from gradscope.collect.calls import (
    COUNTS,
    INPUTS,
    Call,
    CallSite,
    Counted,
    EngineCall,
    Habit,
    HabitKey,
    Reads,
    Shape,
)
from gradscope.collect.generations import OTHER, Generations
from gradscope.collect.inspection import Look
from gradscope.collect.marks import KEY, Census, Packed, Token, Weight
from gradscope.collect.nodes import (
    Kind,
    kind_of,
    stale_by_engine,
    stale_inputs_of_checkpoint,
    was_detached,
)
from gradscope.collect.walk import StackLimit
from gradscope.program.sites import Place
from gradscope.program.tensors import PLAIN, is_parameter
from gradscope.torch_private import ACCUMULATE_GRAD, NO_SEQUENCE_NR, SAVED_TENSORS_ARE_READABLE

# The largest graph that a fast walk recognizes, at about a microsecond a node. A call on a larger
# one is inspected in full each time.
_MOST_NODES = 50_000
_FEW_NODES = StackLimit.OTHER_THREAD_NODES  # no stack is too small for them
# Graphs that are remembered node by node, to tell where nodes of similar graphs were made. Each
# takes a tuple with one class for each node. When there are more, all are forgotten and learnt
# again.
_MOST_KNOWN = 200
# Kinds of calls, and kinds of nodes in one of them. Programs have tens of each; a Function class
# defined in a loop makes new kinds without end.
_MOST_HABITS, _MOST_KINDS = 1_000, 1_000
# How many known graphs, the newest, are searched for the neighbours of a node in a new graph.
_MOST_COMPARED = 16

# How many neighbours on either side must be the same to tell where a node was made. Four tell
# more places apart; two are tried where no known graph has the same four, next to what varies.
_REACHES = (4, 2)

_Window = tuple[type | None, ...]

_FUNCTION: Reads = (("function", "", "", None),)
_LEAF: Reads = (("leaf", "", "", None),)
"""Stand for the saved tensors of a Python Function, which are read in another way, and for those
of a leaf, which has none.
"""


_Read = tuple[set[Node], list[type], list[int], Mapping[int, int], int, int]
"""What a bare walk has read of a graph: its nodes, their kinds and sequence numbers in depth-first
order, which of them other threads have built, and how many tensors and bytes they saved.
"""


class Recognizer:
    """Knows by local facts which graphs need no full look: each kind of node was met at calls of
    this kind and can be read, and all that they saved reads without an error.
    """

    def __init__(
        self, generations: Generations, census: Census, room_for: Callable[[int], int]
    ) -> None:
        self.is_mixed = False
        """Whether the last graph that was not recognized was built in part before the hooks were
        lifted.
        """
        self._generations = generations
        self._census = census
        self._room_for = room_for
        self._habits: dict[HabitKey, Habit] = {}
        self._known: dict[tuple[Habit, tuple[type, ...]], Shape] = {}
        self._reckoned: Sequence[int] = (0,) * len(COUNTS)  # of habits that are forgotten

    def look(
        self, call: Call, asked: EngineCall, roots: Sequence[Node], lifted: int, *, guarded: bool
    ) -> bool:
        """Note in a call what a bare walk finds, and return whether nothing of it is new, freed or
        stale; the hooks were lifted at number ``lifted``. ``guarded``: hooks of the program's may
        be on what the graph saved.
        """
        self.is_mixed = False
        habit = call.habit
        known = habit.shape
        if known is None or known.record is None or not roots:
            return False
        if len(roots) < len(asked.outputs) and asked.bare:  # some are leaves, or have no graph
            return False
        if asked.inputs and asked.constant:
            return False
        oldest = self._generations.oldest_of(habit.ended)
        read = self._read(roots, habit, oldest, lifted, guarded=guarded)
        if read is None:
            return False
        seen, kinds, numbers, elsewhere, tensors, nbytes = read
        if asked.inputs and asked.unused(seen):
            return False
        for i, bits in elsewhere.items():
            numbers[i] += bits
            self._generations.see_built(numbers[i], counts=True)
        newest = self._generations.newest
        lowest = min(filter(None, numbers), default=newest)
        if lowest < oldest and sum(0 < number < oldest for number in numbers) > habit.old:
            return False  # it grows from call to call
        is_old = lowest < newest or elsewhere
        call.fresh = (
            self._count_fresh(numbers, elsewhere) if is_old else len(numbers) - numbers.count(0)
        )
        shape = self._known.get((habit, tuple(kinds)))
        call.of_new_shape = shape is None or shape.record is None
        call.shape = shape or known
        call.size = habit.scaled(tensors, nbytes)
        call.guarded, call.exact = True, False
        call.numbers = array("Q", numbers)
        return True

    @staticmethod
    def is_countable(habit: Habit) -> bool:
        """Return whether the numbers of the nodes of such graphs tell that they are whole."""
        return ACCUMULATE_GRAD is not None and _FUNCTION not in habit.reads.values()

    def numbers_of(self, root: Node, shape: Shape, oldest: int) -> list[int] | None:
        """Walk a graph as the full look does, and return the numbers of its nodes, 0 for leaves;
        None if it has not this shape, or a node is older than ``oldest``.

        This runs at every call of a steady loop, so it walks by itself, with local names.
        """
        numbers: list[int] = []
        seen: set[Node] = set()
        see, add = seen.add, numbers.append
        stack = [root]
        pop, push = stack.pop, stack.append
        try:
            for kind in shape.signature.kinds:
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
        return numbers if seen.issuperset(stack) else None

    def count(self, root: Node, habit: Habit, oldest: int) -> tuple[Shape, bool, list[int]] | None:
        """Return the shape of a graph, or that of one like it, whether it is none that is known,
        and its numbers, 0 for leaves; None if a node is older than ``oldest``, or if its like was
        not met.
        """
        read = self._read([root], habit, oldest, 0, guarded=False, unread=True)
        if read is None or habit.shape is None or habit.shape.record is None:
            return None
        _, kinds, numbers, *_ = read
        if min(filter(None, numbers), default=oldest) < oldest:
            return None
        shape = self._known.get((habit, tuple(kinds)))
        of_new_shape = shape is None or shape.record is None
        return shape or habit.shape, of_new_shape, numbers

    def _count_fresh(self, numbers: Sequence[int], elsewhere: Iterable[int]) -> int:
        """Count the nodes that were built since the last call."""
        generations = self._generations
        fresh = sum(generations.newest <= number < OTHER for number in numbers)
        others = (numbers[i] for i in elsewhere)
        return fresh + sum(generations.of(number) == generations.latest for number in others)

    def habit_of(self, key: HabitKey) -> Habit:
        """Return the habit of these calls, made new if there is none; of too many forget all."""
        habit = self._habits.get(key)
        if habit is None:
            if len(self._habits) >= _MOST_HABITS:
                self._reckoned = self.reckoned
                self._habits.clear()
            habit = self._habits[key] = Habit()
        return habit

    def begin_anew(self) -> None:
        """Look at each kind of call in full again before its graphs are recognized."""
        for habit in self._habits.values():
            habit.begin_anew()

    @property
    def reckoned(self) -> Sequence[int]:
        """What guarded calls have saved, freed and dropped, by those that were watched: in a loop
        all that was saved and not freed is dropped, sooner or later.
        """
        of_habits = (each for habit in self._habits.values() for each in habit.reckoned)
        saved, saved_bytes, freed, freed_bytes, returned, *_ = map(
            sum, zip(self._reckoned, *of_habits, strict=True)
        )
        dropped = saved - freed - self._census.kept_tensors
        dropped_bytes = saved_bytes - freed_bytes - self._census.kept_bytes
        kept = saved, saved_bytes, freed, freed_bytes, returned
        return *kept, max(0, dropped), max(0, dropped_bytes)

    def learn(self, call: Call, look: Look) -> bool:
        """Learn from a look in full what a bare walk needs to know; return whether it would have
        recognized the graph already.
        """
        habit, shape = call.habit, call.shape
        if len(look.nodes) > _MOST_NODES:
            return False
        known = habit.shape is not None
        if len(habit.reads) > _MOST_KINDS:
            habit.reads.clear()
        for node, token in zip(look.nodes, look.tokens, strict=True):
            if type(node) not in habit.reads:
                known = False
                reads = _reads_of(node, token)
                if reads is None:
                    return False
                habit.reads[type(node)] = reads
        habit.shape = shape
        if self._generations.others:
            numbers = enumerate(token.sequence_nr for token in look.tokens)
            shape.elsewhere = {i: n - n % OTHER for i, n in numbers if OTHER <= n < NO_SEQUENCE_NR}
        oldest = self._generations.oldest_of(habit.ended)
        older = [token for token in look.tokens if token.sequence_nr < oldest]
        habit.old = max(habit.old, len(older))
        known = known and not any(token.has_buffers for token in older)
        if shape.recognizable is None and (not call.exact or habit.scale is None):
            self._learn_exactly(habit, shape, look)
        seen = SAVED_TENSORS_ARE_READABLE or not look.foreign
        return known and shape.recognizable is not False and seen

    def _learn_exactly(self, habit: Habit, shape: Shape, look: Look) -> None:
        """Read a graph as the bare walk will, and remember how to know one of its shape."""
        shape.recognizable = False
        sizes: list[int] = []
        for node in look.nodes:
            of_node = _sizes(node, kind_of(type(node)))
            if of_node is None:
                return
            sizes += of_node
        shape.recognizable = True
        if sizes:
            habit.scale = (look.tensors / len(sizes), look.nbytes / max(sum(sizes), 1))
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[habit, tuple(look.kinds)] = shape

    def places_of(self, kinds: tuple[type, ...], place: Place | None) -> list[Place | None]:
        """Return where the nodes of a graph were made, by known graphs that a call at ``place`` has
        met.

        Where none has the same nodes, a node was made where those were whose kind and neighbours in
        depth-first order are the same; None where these are of several places.
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
        habit: Habit,
        oldest: int,
        lifted: int,
        *,
        guarded: bool,
        unread: bool = False,
    ) -> _Read | None:
        """Walk a graph as the full look does, and read all that it saved, or nothing of that
        (``unread``).

        None if a node of this thread that saves something is older than ``oldest`` or ``lifted``,
        if one cannot be read, or if its like was not met. Reading what was saved without hooks runs
        torch's own check of its version, and no code of the program's; what hooks of the program's
        have packed is only asked whether it is there. This runs at every call of a steady loop, so
        it walks by itself, with local names.
        """
        reads_of, youngest = habit.reads.get, max(oldest, lifted)
        kinds: list[type] = []
        numbers: list[int] = []
        seen: set[Node] = set()
        see, add_kind, add_number = seen.add, kinds.append, numbers.append
        nbytes = tensors = 0
        most, tells = _FEW_NODES, SAVED_TENSORS_ARE_READABLE
        met: set[int] = set()
        late: list[int] = []
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
                if reads is _FUNCTION:
                    own = kind_of(kind)
                    sizes = None if stale_by_engine(node, own) else _sizes(node, own)
                    if sizes is None:
                        return None
                    tensors += len(sizes)
                    nbytes += sum(sizes)
                    continue
                for saved, name, raw, edge in reads:
                    if guarded and (packed := _packed_by_theirs(node, saved, met)) != 0:
                        if packed is None:
                            return None
                        tensors += packed
                        continue
                    value = getattr(node, name) if tells else _unpacked(node, name)
                    if value is None:
                        continue
                    if type(value) in PLAIN:
                        tensors += 1
                        if value.requires_grad:
                            base = value._base
                            if (value if base is None else base).is_leaf:
                                continue  # of a parameter, which costs the graph no memory
                        elif (
                            tells
                            and (edge is None or following[edge][0] is not None)
                            and was_detached(getattr(node, raw), value)
                        ):
                            return None
                        nbytes += value.nbytes
                    elif type(value) is tuple:
                        some = [at for at, each in enumerate(value) if each is not None]
                        tensors += len(some)
                        nbytes += sum(_nbytes(value[at]) for at in some)
                        bare = [at for at in some if tells and not value[at].requires_grad]
                        held = getattr(node, raw) if bare else ()
                        if any(was_detached(held[at], value[at]) for at in bare):
                            return None
                    else:
                        return None  # a tensor subclass, whose code is not to run
        except RuntimeError:  # freed or stale
            return None
        shape = self._known.get((habit, tuple(kinds))) if others else None
        elsewhere = {} if shape is None else shape.elsewhere
        older = [numbers[i] for i in late if i not in elsewhere]
        if older:
            self.is_mixed = min(older) >= oldest
            return None
        return seen, kinds, numbers, elsewhere, tensors, nbytes


def _windows(kinds: tuple[type, ...], reach: int) -> list[_Window]:
    """Return each kind with those of its neighbours, so many on either side."""
    padded = (*(None,) * reach, *kinds, *(None,) * reach)
    return [padded[i : i + 2 * reach + 1] for i in range(len(kinds))]


def _unpacked(node: Node, name: str) -> Any:
    """Read what a node saved where a saved tensor does not say by itself what it holds."""
    value, by_hooks = slots.unpacked(node, name)
    if by_hooks:
        slots.let_go(value, by_hooks)
    return value


def _reads_of(node: Node, token: Token) -> Reads | None:
    """Return what to read of nodes of this kind; None if that is not all that the hooks saw."""
    kind = kind_of(type(node))
    if kind.is_slices or kind.is_compiled or kind.is_unnamed:
        return None
    sizes = _sizes(node, kind)
    if sizes is None or len(sizes) < len(token.packs):
        return None
    return _LEAF if kind.is_leaf else _FUNCTION if kind.is_function else kind.reads


def _sizes(node: Node, kind: Kind) -> list[int] | None:
    """Return the bytes of each tensor that a node saved, without unpacking anything: 0 for what
    hooks of the program's have packed.

    None for tensor subclasses, whose code must not run, where such hooks could not be told later,
    and where torch raises: for a list that was freed, and for sparse tensors, which have no size.
    """
    sizes = []
    try:
        for each in (one for name in kind.names for one in slots.each_saved(node, name)):
            data: Any = each.data
            if data is None:
                continue
            ours = isinstance(data, Packed)
            if data.theirs is not None if ours else each.unpack_hook is not None:
                if not SAVED_TENSORS_ARE_READABLE:
                    return None
                sizes.append(0)
                continue
            tensor = data.tensor if ours else data
            if type(tensor) not in PLAIN:
                return None
            sizes.append(_nbytes(tensor))
    except RuntimeError:
        return None
    return sizes


def _nbytes(tensor: torch.Tensor) -> int:
    """Return the bytes that a saved tensor costs the graph, which for a parameter are none."""
    return 0 if is_parameter(tensor) else tensor.nbytes


def _packed_by_theirs(node: Node, name: str, met: set[int]) -> int | None:
    """Count which of a node's saved tensors hooks of the program's have packed. Unpacks nothing.

    None where one of them is not there, or stands for a checkpoint with stale inputs. ``met``: the
    hooks that were asked for that.
    """
    count = 0
    for each in slots.each_saved(node, name):
        unpack = each.unpack_hook
        if unpack is None:
            continue
        count += 1
        if each.data is None:
            return None
        if id(unpack) not in met:
            met.add(id(unpack))
            if stale_inputs_of_checkpoint(unpack):
                return None
    return count


if TYPE_CHECKING:
    from gradscope.collect.state import State


# Consecutive calls on known structures after which the hooks are suspended. Before the first
# optimizer step, calls may be micro-batches of one iteration, so three times as many are needed;
# leaks are judged after the same numbers.
_ALIKE, _ALIKE_WITHOUT_STEPS = 8, 24
# The same once these calls had this many nodes in all: hooks cost more there, and as many saved
# tensors were seen. With the numbers above, the first 30 iterations of 1,000 scalar operations
# took 0.7 to 0.9 s more than without a watch; with these, and fewer tensors compared at each
# line, 0.3 to 0.5 s.
_FEWER, _FEWER_WITHOUT_STEPS, _MUCH = 3, 9, 1_500
# After this many guarded calls, a few are watched again, to correct totals that change slowly:
# three in 2,000 cost little.
_RENEWED, _WATCHED_AGAIN = 2_000, 3
# Calls that are watched at most after an unusual number of other nodes was built (an evaluation),
# until as many come again: one that never does must not keep the hooks in force for good.
_LONGEST_WAIT = 2_000
# Calls of each kind after the hooks were suspended that set how many graphs may be alive; more
# are news after that.
_SETTLING = 4
# How many times more other nodes than ever before may be built between two calls: an evaluation
# of random length is no news.
_TOLERANCE = 1.5


class Lifting:
    """Decides when the hooks of the watch's own thread are lifted."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._ledger, self._census = state.ledger, state.census
        self._past, self._generations = state.past, state.generations
        self.on = False
        self.leaves = False
        """Nodes may live that were built without hooks and that no call has run and freed."""
        self.pending = 0
        """How many such nodes there are that a call may still run, where that is known."""
        self._may_leave = False
        """Whether only the next call tells that, as the hooks came back before it."""
        self.blocked = not state.hooked
        self.doubts = set[object]()
        """Who sees something grow from call to call: what it is shows only with hooks."""
        self.leaks = False
        """A leak was told: what it leaves at each call is no news."""
        self.since = 0
        """The sequence number at which the hooks were lifted last."""
        self.theirs_entered = False
        """Whether the program has entered hooks of its own since."""
        self.sites: dict[tuple[int, int], CallSite] = {}
        """Where calls are counted, by the identity of the code, and the instruction in it."""
        self._alive: dict[Habit, tuple[int, int]] = {}  # calls since, and graphs alive at the most
        self._counted = state.ledger.counts()
        self._alike = self._alike_nodes = self._guarded = 0
        self._awaited: tuple[Habit, int] | None = None
        self._wait_until = self._last_odd = 0

    # what begins it

    def after_hooked(self, call: Call, *, alike: bool) -> None:
        """Lift the hooks after enough consecutive calls matched a known shape.

        ``alike`` is False for a call after which things may not go on as before, whatever its graph
        looks like.
        """
        self._count(call)
        if self._may_leave:
            self._may_leave = False
            self.leaves = self._leaves_any(call)
        habit = call.habit
        alive = self._ledger.live_tensors, self._census.alive - call.fresh
        bounded = habit.bounds(*alive, leaks=self.leaks)
        if self.on:  # a graph that was built in part before they were lifted
            return
        same = alike and bounded and not call.woken
        self._alike = self._alike + 1 if same else 0
        self._alike_nodes = self._alike_nodes + call.fresh if same else 0
        if self._awaited is not None:
            waited_for, number = self._awaited
            if (waited_for is habit and call.extra >= number) or call.number >= self._wait_until:
                self._awaited = None
        with_steps, without = _ALIKE, _ALIKE_WITHOUT_STEPS
        if self._alike_nodes >= _MUCH:
            with_steps, without = _FEWER, _FEWER_WITHOUT_STEPS
        needed = with_steps if call.steps else without
        if self._alike < needed or self._awaited is not None or self.doubts or self.blocked:
            return
        if call.parent is None:  # the engine forgets what is done to its stack of hooks
            self.lift()

    def lift(self) -> None:
        """Lift the hooks, if nothing forbids it."""
        if not (self.on or self.blocked) and self._state.hooks.lift():
            self.on = True
            self.since = self._generations.own_next
            self.theirs_entered = False
            self._guarded = 0
            self._alive.clear()
            self._past.toggle(self._state.calls)

    def _count(self, call: Call) -> None:
        """Note what was counted with a call that was watched, since the one before."""
        counted = self._ledger.counts()
        pairs = zip(counted, self._counted, strict=True)
        counts = tuple(now - then for now, then in pairs)
        self._counted = counted
        call.habit.watch(call, counts)

    # while it goes on

    def begin(self, call: Call, roots: Sequence[Node]) -> None:
        """Count the nodes of a recognized graph as alive for as long as its root lives."""
        metadata: Any = roots[0].metadata  # a property, though its stub says a method
        if Weight.KEY not in metadata:
            mark = metadata.get(KEY)  # the program may have had a look at it: it is counted then
            is_counted = mark is not None and mark.census is self._census
            nodes = 0 if is_counted else self._past.count_new(call.numbers)
            metadata[Weight.KEY] = Weight(self._census, nodes)
        metadata[Weight.KEY].keep(*call.size if call.keep else (0, 0))

    def after_guarded(self, call: Call) -> bool:
        """Remember the call, and put the hooks back if it was not like those that were watched;
        return whether more nodes live than after those.
        """
        self._note_left(call)
        self._past.add(call)
        self._guarded += 1
        ledger, extra = self._ledger, call.built - call.fresh
        if ledger.live_bytes + call.size[1] > ledger.highest_bytes:  # its graph was alive at least
            ledger.highest_bytes = ledger.live_bytes + call.size[1]
        if call.habit.pace:
            call.habit.go_on()
        if self._has_outgrown(call):
            self._put_back()
            return True
        if call.woken or not call.completed:
            self._put_back()
        elif extra > call.habit.extra * _TOLERANCE:
            self._odd(call)
        elif self._guarded >= _RENEWED * (1 + bool(self.pending)):
            self._put_back()
            self._alike = max(0, _ALIKE_WITHOUT_STEPS - _WATCHED_AGAIN)
        return False

    def after_counted(self, calls: Sequence[Counted]) -> None:
        """Take note of calls of which only the numbers were looked at."""
        self._guarded += len(calls)
        self.leaves = self.leaves or any(call.sequence_nr != call.start for call in calls)
        self._census.destroyed += sum(len(call.numbers) - call.numbers.count(0) for call in calls)

    def _note_left(self, call: Call) -> None:
        """Note the nodes that a guarded call has left, and those left by others that it has run."""
        newest = call.sequence_nr - call.built  # when the call before had ended
        older = [number for number in call.numbers if 0 < number < newest]
        is_alone = call.parent is None and not call.within and self._runs_all(call)
        if not is_alone or (older and self._past.ran(older, call.number - 1, min(older))):
            self.leaves = self.leaves or self._leaves_any(call)
        else:
            self.pending += call.built - call.fresh - len(older)

    def _leaves_any(self, call: Call) -> bool:
        """Return whether nodes may live after a call that it has not freed."""
        return call.built > call.fresh or not self._runs_all(call)

    @staticmethod
    def _runs_all(call: Call) -> bool:
        """Return whether a call has run and freed its whole graph, and built nothing."""
        is_partial = call.keep or call.shape.signature.asked & INPUTS
        return call.completed and not (is_partial or call.builds)

    # what ends it

    def _has_outgrown(self, call: Call) -> bool:
        """Return whether more recognized graphs are alive than after earlier calls like this, and
        more nodes than there ever were.
        """
        habit, alive = call.habit, self._census.graphs
        calls, most = self._alive.get(habit, (0, 0))
        if calls < _SETTLING:
            self._alive[habit] = (calls + 1, max(most, alive))
            return False
        return alive > most and self._census.alive - call.fresh > habit.alive[1]

    def _odd(self, call: Call) -> None:
        """Watch in full until as many nodes as now were built between two calls once more."""
        self._awaited = (call.habit, call.extra)
        self._wait_until = call.number + min(2 * (call.number - self._last_odd), _LONGEST_WAIT)
        self._last_odd = call.number
        self._put_back()

    def before_theirs(self) -> None:
        """Learn that the program enters hooks of its own, which a walk must not run."""
        self.theirs_entered = True
        self.read_next()
        if not SAVED_TENSORS_ARE_READABLE:
            self.leave()

    def read_next(self) -> None:
        """Have the next call at each place be read."""
        for site in self.sites.values():
            site.left = 0

    def block(self) -> None:
        """Never lift the hooks again: something runs that a bare walk cannot see.

        They come back at the next backward call, as only their own thread can put them back.
        """
        self.blocked = True
        self.read_next()

    def leave(self) -> None:
        """Put the hooks back between two calls: what was built since the first may live."""
        if self.on:
            self._may_leave = not self.leaves
            self.leaves = True
            self._put_back()

    def _put_back(self) -> None:
        if not self.on:  # a call within this one has done it
            return
        self.on = False
        self.read_next()
        self._alike = self._alike_nodes = 0
        self._state.hooks.lower()
        self._past.toggle(self._state.calls)
        number = self._generations.own_next
        for shape in self._past.shapes:
            for place in shape.signature.places:
                if place is not None:  # it ran in every iteration, so it has by now
                    place.last_sequence_nr = number

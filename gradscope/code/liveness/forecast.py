"""Follows each way that the code can go with the values at hand: must it come so?"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from inspect import CO_COROUTINE, CO_GENERATOR
from types import CodeType, MappingProxyType
from typing import Any, NamedTuple

from gradscope.code import names
from gradscope.code.liveness.callees import (
    Callee,
    Crossing,
    Resolve,
    arguments,
    given_values,
    names_in,
)
from gradscope.code.liveness.computing import (
    TRACKED,
    Facts,
    Opaque,
    Rest,
    advance,
    asked,
    called,
    compute,
    iterate,
    truth,
)
from gradscope.code.liveness.flow import MISSING, Instruction
from gradscope.code.liveness.notes import Notes, Phase
from gradscope.code.liveness.opcodes import SUBSCRIPT_OPERATOR, Action
from gradscope.code.liveness.reads import RESULT, starts_after
from gradscope.code.liveness.survey import Loops, decorated_function, survey_of
from gradscope.code.liveness.tracking import Tracker
from gradscope.code.liveness.values import (
    UNKNOWN,
    Env,
    Invocation,
    Kind,
    Mark,
    Marks,
    Role,
    Stack,
    State,
    Value,
)
from gradscope.code.liveness.words import CallKind, kind_of_call

_MOST_STEPS = 6_000  # instructions followed for one question
_MOST_ELSEWHERE = 1_500  # of those, in one function of another file

Written = Mapping[str, Any]
"""What the followed code has stored: by path; ``*.h``: an attribute of some object."""


class Condition(NamedTuple):
    """A test whose outcome is not known, and the outcome that it has on this way."""

    code: CodeType
    at: int
    taken: bool


Conditions = tuple[Condition, ...]


class Way(NamedTuple):
    """A way through the code, up to an instruction."""

    at: int
    state: State
    written: Written
    phase: Phase = Phase()
    conditions: Conditions = ()
    distance: int = 0


class Coming(NamedTuple):
    """A backward call through what is tracked: the read that it comes of, where, on which way."""

    read: int
    at: tuple[CodeType, int]
    conditions: Conditions
    phase: Phase = Phase()
    distance: int = 0


class Returned(NamedTuple):
    """A way on which the function returns first."""

    env: Env
    value: Value
    written: Written
    conditions: Conditions


class Exploration:
    """What was found on all ways so far.

    ``unread``: what is tracked went into code that was not read to its end, which may let go of it.
    """

    def __init__(self, *, to_yield: bool = False, most: int = _MOST_STEPS) -> None:
        self.to_yield = to_yield
        self.most = most
        self.unread = False
        self.steps = 0
        self.coming: list[Coming] = []
        self.lost: list[Conditions] = []  # ways on which nothing refers to it any more
        self.raised: list[Conditions] = []
        self.decided: set[int] = set()  # branches of the outermost code whose outcome is known

    @property
    def is_complete(self) -> bool:
        """Whether all ways were followed to their end."""
        return self.steps < self.most

    def elsewhere(self) -> Exploration:
        """Return an exploration of a function of another file, which may be a large one."""
        return Exploration(most=min(_MOST_ELSEWHERE, self.most - self.steps))

    def add(self, part: Exploration) -> None:
        """Count what a part of it has found in a function that the code calls."""
        self.steps += part.steps
        self.unread = self.unread or part.unread or not part.is_complete
        if part.is_complete:
            self.coming += part.coming
            self.lost += part.lost
            self.raised += part.raised


CALLED = "()"  # among what was written: code that cannot be followed has run
_ITEMS = "[]"  # an element of some container was stored
_COMPUTES = (Action.FRESH, Action.BINARY, Action.OPERATE, Action.BUILD)
_CHANGES = frozenset(
    {
        *("pop", "popleft", "popitem", "update", "setdefault", "remove", "insert", "extend"),
        *("append", "appendleft", "add", "discard", "clear", "sort", "reverse", "move_to_end"),
    }
)


class Knower(Tracker):
    """A tracker that computes the values of conditions as far as they are known.

    ``written`` is what the way that is followed has stored so far.
    """

    facts: Facts
    written: Written

    def execute(self, index: int, state: State, *, taken: bool = False) -> State:
        """Return the state after an instruction, with what is known of the value it pushes."""
        after = super().execute(index, state, taken=taken)
        instruction = self.flow.instructions[index]
        action = instruction.action
        if not after.stack or action is Action.KEEP:
            return after
        if action is Action.NEXT:
            return after if taken else self._next(state, after)
        found: Any = MISSING
        place = -2 if action is Action.ATTRIBUTE and instruction.null else -1
        if action is Action.ATTRIBUTE and not after.stack[place].path:
            found = self._part(state.stack[-1].constant, f".{instruction.name}")
        elif action is Action.SUBSCRIPT or (
            action is Action.BINARY and instruction.arg == SUBSCRIPT_OPERATOR
        ):
            found = self._element(state.stack, after.stack[-1])
        elif instruction.opname == "GET_ITER":
            found = _iterated(state.stack[-1])
        elif action in _COMPUTES and instruction.effect <= 0:
            popped = state.stack[len(state.stack) - 1 + instruction.effect :]
            found = compute(instruction, [constant_of(v) for v in popped], self.facts)
        if found is MISSING:
            return after
        value = after.stack[place]._replace(constant=found)
        rest = after.stack[place + 1 :] if place < -1 else ()
        return State(after.env, (*after.stack[:place], value, *rest))

    def _next(self, state: State, after: State) -> State:
        _, element, rest = advance(iterate(state.stack[-1].constant), self.facts)
        *below, iterator, value = after.stack
        items = value.items
        if type(element) is tuple:
            items = tuple(Value(marks=value.marks, constant=part) for part in element)
        else:
            value = value._replace(constant=element)
        iterator = iterator._replace(constant=rest)
        return State(after.env, (*below, iterator, value._replace(items=items)))

    def _element(self, stack: Stack, result: Value) -> Any:
        container, key = stack[-2].constant, stack[-1].constant
        if result.path:
            return self.known(result.path)
        known = type(container) is Opaque and type(key) in (int, str)
        return self._part(container, f"[{key!r}]") if known else MISSING

    def get(self, path: str, marks: Marks, name: str, owner: str) -> Value:
        """Return the value of a variable or attribute, with what is known of it."""
        value = super().get(path, marks, name, owner)
        known = MISSING if marks or not path else self.known(path)
        return value if known is MISSING else value._replace(constant=known)

    def known(self, path: str) -> Any:
        """Return what a path stands for at this point; MISSING where that is not known."""
        split = names.split(path)
        if split is None:  # ".0" is what a comprehension calls the iterator that it is given
            return self.written.get(path, MISSING)
        root, parts = split
        for count in range(len(parts), -1, -1):
            prefix = root + "".join(parts[:count])
            if prefix in self.written:
                base = self.written[prefix]
                for part in parts[count:]:
                    base = self._part(base, part)
                return base
        if any(self._is_stored(part) for part in parts) or self._is_stored(root):
            return MISSING
        if self.is_top:
            return self.facts.find(path)
        local = (*self.code.co_varnames, *self.code.co_cellvars, *self.code.co_freevars)
        if root in local or self.resolve is None:
            return MISSING
        return self.facts.find(path, glob=True)

    def _part(self, owner: Any, part: str) -> Any:
        if type(owner) is not Opaque or self._is_stored(part):
            return MISSING
        return self.facts.part(owner.value, part)

    def _is_stored(self, part: str) -> bool:
        """Return whether code that was followed may have stored the last step of a path anew."""
        if part[0] == "[":
            return _ITEMS in self.written
        if part[0] == "." and f"*{part}" in self.written:
            return True
        if CALLED not in self.written:
            return False
        local = part in self.code.co_varnames and part not in self.code.co_cellvars
        return not local and part.lstrip(".") in self.facts.changeable

    # stores

    def bind(
        self, env: Env, path: str, value: Value, at: int, *, weak: bool = False, inner: bool = False
    ) -> Env:
        """Rebind the path, and note what is known of its new value."""
        env = super().bind(env, path, value, at, weak=weak, inner=inner)
        instruction = self.flow.instructions[at]
        if instruction.action is Action.STORE_ATTRIBUTE:
            self._note_attribute(instruction.name)
        elif instruction.action in (Action.STORE_SUBSCRIPT, Action.STORE_SLICE):
            self.written = {**self.written, _ITEMS: True}
        if path:
            self._write(path, MISSING if weak else value.constant)
        return env

    def _note_attribute(self, name: str) -> None:
        end = f".{name}"
        kept = {p: v for p, v in self.written.items() if not p.endswith(end)}
        self.written = {**kept, f"*{end}": True}

    def _write(self, path: str, value: Any) -> None:
        kept = {p: v for p, v in self.written.items() if not names.is_part(p, path)}
        self.written = {**kept, path: value}

    def forget(self, env: Env, path: str) -> Env:
        """Drop what is known of the path."""
        if path:
            self._write(path, MISSING)
        return super().forget(env, path)

    def note_call(self, call: Invocation, *, is_known: bool) -> None:
        """Note what a call that is not followed may have stored."""
        callee = call.callee
        if is_known or not self._is_transparent(call):
            self.written = {**self.written, CALLED: True}
        if callee.attribute in _CHANGES and callee.path != callee.attribute:
            self.written = {**self.written, _ITEMS: True}
            if callee.owner:
                self._write(callee.owner, MISSING)
        if is_known or kind_of_call(callee.path, callee.attribute, dropped=False) is (
            CallKind.UNKNOWN
        ):
            for argument in call.arguments:
                known = argument.constant
                if type(known) is Opaque and self.facts.size(known.value) is not None:
                    self.written = {**self.written, _ITEMS: True}
                    if argument.path:
                        self._write(argument.path, MISSING)

    def result_of(self, call: Invocation) -> Any:
        """Return what a call gives, if that is known."""
        callee = call.callee
        constants = [constant_of(argument) for argument in call.arguments]
        found = MISSING
        if callee.path in ("getattr", "hasattr") and len(constants) > 1 and not call.keywords:
            return self._attribute(call, *constants)
        if callee.path and not call.keywords:
            found = called(callee.path, constants, self.facts)
        if found is MISSING and callee.owner and not call.keywords:
            owner = self.known(callee.owner)
            found = asked(owner, callee.attribute, constants, self.facts)
        return found

    def _attribute(self, call: Invocation, owner: Any, name: Any, default: Any = MISSING) -> Any:
        """Return what ``getattr`` or ``hasattr`` gives."""
        if type(owner) is not Opaque or type(name) is not str:
            return MISSING
        path, asks = call.arguments[0].path, call.callee.path == "hasattr"
        found = self.known(f"{path}.{name}") if path else self._part(owner, f".{name}")
        if found is not MISSING:
            return True if asks else found
        if self._is_stored(f".{name}") or not self.facts.lacks(owner.value, name):
            return MISSING
        return False if asks else default

    def _is_transparent(self, call: Invocation) -> bool:
        """Return whether a call runs no code that could store what conditions ask for."""
        callee = call.callee
        kind = kind_of_call(callee.path, callee.attribute, dropped=False)
        if kind is not CallKind.UNKNOWN or callee.role is not Role.PLAIN:
            return True
        is_method = bool(callee.attribute) and callee.path != callee.attribute
        if is_method and callee.attribute not in self.facts.defined and callee.path == "":
            return True
        return self.facts.is_transparent(callee.path) or (
            is_method and callee.attribute not in self.facts.defined and not callee.codes
        )


def constant_of(value: Value) -> Any:
    """Return what is known of a value: that it is no None, where it is tracked."""
    return TRACKED if value.marks and value.constant is MISSING else value.constant


def _iterated(value: Value) -> Rest:
    if value.items:
        return Rest(tuple(item.constant for item in value.items)) if not value.marks else Rest()
    if any(mark.rest.startswith("[") for mark in value.marks):
        return Rest(more=True)  # it holds what is tracked
    return Rest() if value.marks else iterate(value.constant)


_MOST_VISITS = 6  # of one instruction, before what changes counts as unknown
_ENDS = frozenset({"sys.exit", "exit", "quit", "os._exit"})
_ITERATING = frozenset({"enumerate", "zip", "reversed", "list", "tuple", "iter", "tqdm"})


class Forecaster(Knower):
    """A tracker that keeps ways apart, and takes none that a known value rules out."""

    def __init__(
        self,
        code: CodeType,
        notes: Notes,
        resolve: Resolve | None,
        facts: Facts,
        exploration: Exploration,
        *,
        caller: Forecaster | None = None,
        grad_off: bool = False,
    ) -> None:
        super().__init__(code, notes, resolve, caller=caller, grad_off=grad_off)
        self.facts, self.written = facts, {}
        self.exploration = exploration
        self.conditions: Conditions = ()
        self.returns: list[Returned] = []
        self._hits: list[tuple[int, tuple[CodeType, int]]] = []
        self._forks: list[Returned] | None = None
        self._ended = False
        self._seen: set[Any] = set()
        self._visits: dict[tuple[int, Phase], int] = {}
        self._latest: dict[tuple[int, Phase], Way] = {}
        self._waiting: list[tuple[Phase, int, int, Way]] = []

    # ways

    def explore(self, starts: Iterable[Way]) -> None:
        """Follow all ways from the starts."""
        for way in starts:
            self._arrive(way)
        while self._waiting and self.exploration.is_complete:
            going: Way | None = heapq.heappop(self._waiting)[-1]
            while going is not None and self.exploration.is_complete:
                going = self._step(going)

    def _arrive(self, way: Way) -> None:
        visited = (way.at, way.phase)
        self._visits[visited] = self._visits.get(visited, 0) + 1
        if self._visits[visited] > _MOST_VISITS:
            way = _widened(way, self._latest[visited])
        self._latest[visited] = way
        state = way.state
        key = (
            *visited,
            frozenset(state.env.items()),
            tuple((v.marks, v.role is not Role.SLICE and v.constant) for v in state.stack),
            frozenset(way.written.items()),
        )
        if key not in self._seen:
            self._seen.add(key)
            place = len(self._seen)
            heapq.heappush(self._waiting, (way.phase, way.distance, place, way))

    def _step(self, way: Way) -> Way | None:
        """Follow a way over one instruction; return it if it continues alone."""
        explored = self.exploration
        explored.steps += 1
        index, state = way.at, way.state
        instruction = self.flow.instructions[index]
        self.phase, self.distance = way.phase, way.distance
        self.written, self.conditions = way.written, way.conditions
        if instruction.opname in ("RAISE_VARARGS", "RERAISE"):
            explored.raised.append(way.conditions)
            return None
        if explored.to_yield and instruction.action is Action.YIELD:
            explored.coming.append(Coming(-1, (self.code, index), way.conditions))
            return None
        if not explored.to_yield and not _carries(state):
            if self.is_top:
                explored.lost.append(way.conditions)
            else:
                self.returns.append(let_go(way.conditions, way.written))
            return None
        if instruction.action in (Action.RETURN, Action.RETURN_CONSTANT):
            self._returns(index, state, instruction)
            return None
        decided = self._decided(instruction, state.stack)
        if decided is not None and self.is_top and instruction.falls and instruction.jump >= 0:
            explored.decided.add(index)
        if decided is None:
            for taken in (False, True):
                self._go(way, index, taken, (*way.conditions, Condition(self.code, index, taken)))
            return None
        return self._go(way, index, decided, way.conditions)

    def _go(self, way: Way, index: int, taken: bool, conditions: Conditions) -> Way | None:
        """Execute an instruction; return the way if nothing else can come to where it leads."""
        instruction = self.flow.instructions[index]
        self.written, self.phase = way.written, way.phase
        self._hits, self._forks, self._ended = [], None, False
        after = self.execute(index, way.state, taken=taken)
        if self._ended:
            self.exploration.raised.append(conditions)
            return None
        if self._hits:
            found = (Coming(*hit, conditions, way.phase, way.distance) for hit in self._hits)
            self.exploration.coming += found
            return None
        target = instruction.jump if taken else index + 1
        phase, distance = self._crossing(index, target), way.distance + 1
        going = Way(target, after, self.written, phase, conditions, distance)
        if self._forks is not None:
            for fork in self._forks:
                stack = (*after.stack[:-1], fork.value)
                state = State(fork.env, stack)
                self._arrive(
                    going._replace(state=state, written=fork.written, conditions=fork.conditions)
                )
            return None
        if target in self.flow.joins or conditions is not way.conditions:
            self._arrive(going)
            return None
        return going

    def _returns(self, index: int, state: State, instruction: Instruction) -> None:
        value = state.stack[-1] if instruction.action is Action.RETURN and state.stack else UNKNOWN
        if instruction.action is Action.RETURN_CONSTANT:
            value = Value(constant=instruction.constant)
        after = self.execute(index, state)
        self.returns.append(Returned(after.env, value, self.written, self.conditions))

    def _decided(self, instruction: Instruction, stack: Stack) -> bool | None:
        """Return whether an instruction jumps; None where that is not known."""
        if instruction.jump < 0 or not instruction.falls:
            return instruction.jump >= 0
        name = instruction.opname
        top = stack[-1] if stack else UNKNOWN
        if instruction.action is Action.NEXT:
            if top.role is Role.SPENT:
                return True
            if top.marks and type(top.constant) is not Rest:
                return False  # it holds what is tracked
            more = advance(iterate(top.constant), self.facts)[0]
            return None if more is None else not more
        if instruction.action is Action.SEND:
            return not self.exploration.to_yield
        if "NONE" in name:
            none = False if top.marks else top.constant is None
            known = None if top.constant is MISSING and not top.marks else none
            return None if known is None else known != ("NOT_NONE" in name)
        known = truth(top.constant, self.facts)
        return None if known is None else known == ("IF_TRUE" in name)

    # calls

    def _backward(self, marks: Marks, index: int) -> None:
        super()._backward(marks, index)
        self._hits += [(mark.read, (self.code, index)) for mark in marks if mark.read >= 0]

    def call(self, env: Env, call: Invocation) -> tuple[Env, Value]:
        """Return what a call does; a function of the program is followed on all its ways."""
        callee = call.callee
        if callee.path in _ENDS:
            self._ended = True
        if callee.role is not Role.NO_GRAD_EXIT and decorated_function(call) is None:
            known = self._known(callee)
            if len(known) == 1 and self._can_enter(known[0]):
                crossing = Crossing(self.code, known[0], env, call)
                if crossing.start and (after := self._enter(known[0], crossing, call)) is not None:
                    return after
            self.note_call(call, is_known=bool(known))
            if not known and self._is_unread(call):
                self.exploration.unread = True
        env, result = super().call(env, call)
        found = self.result_of(call) if not result.marks else MISSING
        if result.marks and callee.path in _ITERATING:
            found = Rest(more=True)
        return env, result if found is MISSING else result._replace(constant=found)

    def _known(self, callee: Value) -> list[Callee]:
        """Return the functions that a call may run, with what their parameters have by default."""
        known = super()._known(callee)
        found = self.resolve(callee.path) if self.resolve and callee.codes else None
        if found is None or len(known) != 1 or found.code != known[0].code:
            return known
        return [known[0]._replace(defaults=found.defaults, inside=found.inside)]

    def _can_enter(self, callee: Callee) -> bool:
        code = callee.code
        return (
            code not in self.running
            and len(self.running) <= 5
            and not code.co_flags & (CO_GENERATOR | CO_COROUTINE)
        )

    def _is_unread(self, call: Invocation) -> bool:
        """Return whether what is tracked goes into a function of the program's that is not found:
        ``Cutter().cut(h)``.
        """
        callee, given = call.callee, any(argument.marks for argument in call.arguments)
        kind = kind_of_call(callee.path, callee.attribute, dropped=False)
        is_unknown = kind is CallKind.UNKNOWN and callee.attribute in self.facts.defined
        return given and is_unknown and not self.facts.is_transparent(callee.path)

    def _enter(
        self, callee: Callee, crossing: Crossing, call: Invocation
    ) -> tuple[Env, Value] | None:
        """Follow all ways through a function; the caller continues after each that returns. None
        where there are too many.
        """
        off = callee.no_grad or self.gradients_off(call.stack)
        resolve = names_in(callee, self.code, self.resolve, call)
        facts = self.facts if callee.inside is None else self.facts.within(resolve)
        explored = self.exploration
        if callee.code.co_filename != self.code.co_filename:
            explored = explored.elsewhere()
        inner = Forecaster(
            callee.code, self.notes, resolve, facts, explored, caller=self, grad_off=off
        )
        inner.know_functions(arguments(callee, call))
        written = {p: v for p, v in self.written.items() if p[0] in "*([" or crossing.shares(p)}
        written.update(given_values(callee, call))
        if crossing.first:
            written[crossing.first] = self.known(callee.owner)
            mine = callee.owner + "."
            written.update(
                (crossing.first + p[len(callee.owner) :], v)
                for p, v in self.written.items()
                if p.startswith(mine)
            )
        start = State(crossing.start, ())
        inner.explore([Way(0, start, written, self.phase, self.conditions, self.distance)])
        if explored is not self.exploration:
            self.exploration.add(explored)
            if not explored.is_complete:
                return None
        self._forks = []
        for way in inner.returns:
            left = self.written
            for path, value in way.written.items():
                outer = path if path[0] in "*([" else crossing.outer_path(path)
                if outer:
                    left = {**left, outer: value}
            after = crossing.after(way.env)
            value = Value(marks=way.value.marks, constant=way.value.constant)
            self._forks.append(Returned(after, value, left, way.conditions))
        return crossing.after({}), UNKNOWN


def _carries(state: State) -> bool:
    return bool(state.env) or any(value.marks for value in state.stack)


def let_go(conditions: Conditions, written: Written = MappingProxyType({})) -> Returned:
    """Return what is left where a function refers to the object no more, and is not followed."""
    return Returned({}, UNKNOWN, {**written, CALLED: True}, conditions)


def _widened(way: Way, before: Way) -> Way:
    """Return a way that has forgotten what is not as it was at the visit before.

    What an inner loop leaves alone, as the iterator of the loop around it, stays known.
    """
    written = {
        path: value
        if (value is True and path[0] in "*([") or _is_same(value, before.written.get(path))
        else MISSING
        for path, value in way.written.items()
    }
    written |= {path: MISSING for path in before.written.keys() - written if path[0] not in "*(["}
    then = before.state.stack
    stack = tuple(
        value
        if len(then) == len(way.state.stack) and _is_same(value.constant, then[at].constant)
        else value._replace(constant=MISSING)
        for at, value in enumerate(way.state.stack)
    )
    return way._replace(written=written, state=State(way.state.env, stack))


def _is_same(value: Any, other: Any) -> bool:
    return value is other or (type(value) is type(other) and bool(value == other))


def _at_hand(iterator: Value, rest: Rest, facts: Facts) -> Rest:
    """Return what is known of a running iterator: one that will give what is tracked continues."""
    is_known = rest.source is not MISSING and facts.peek(rest.source, 0)[0] is not None
    return rest if is_known or not iterator.marks else Rest(more=True)


def ways_after(
    forecaster: Forecaster,
    lasti: int,
    names: Collection[str],
    written: Written,
    result: Any,
    loops: Loops | None = None,
) -> list[Way]:
    """Return the ways that lead on from an instruction, as ``f_lasti`` gives it.

    ``written`` is what was stored since the frame came to it, and ``result`` what is known of what
    the call there returns. The loops around it continue with the iterators that they have.
    """
    flow = forecaster.flow
    index = flow.index(lasti)
    forecaster.loops, forecaster.loops_at_hand = flow.loops_around(index), loops
    stacks = survey_of(forecaster.code).stacks
    iterators = {}
    for loop in forecaster.loops:
        if flow.instructions[loop.header].action is Action.NEXT and loop.header in stacks:
            depth = len(stacks[loop.header]) - 1
            running = forecaster.facts.running(depth)
            iterators[depth] = Rest() if running is MISSING else Rest(running)
    env = {name: frozenset((Mark(name, Kind.SAME, -1),)) for name in names if name != RESULT}
    ways = []
    for phase, start, state in starts_after(forecaster, index, env, names, loops):
        stack = tuple(
            value._replace(constant=_at_hand(value, iterators[depth], forecaster.facts))
            if depth in iterators
            else value
            for depth, value in enumerate(state.stack)
        )
        if result is not MISSING and start == index + 1 and stack:
            stack = (*stack[:-1], stack[-1]._replace(constant=result))
        if not phase.on_exception:
            ways.append(Way(start, State(state.env, stack), written, phase))
    return ways

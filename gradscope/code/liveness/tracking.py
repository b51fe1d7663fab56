"""Follows objects along every path until their names are rebound, and notes each read."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from types import CodeType
from typing import Any, TypeAlias

from gradscope.code.liveness.callees import Callee, Crossing, Resolve, arguments, names_in
from gradscope.code.liveness.flow import Instruction, Loop, level_after
from gradscope.code.liveness.notes import Effect, Note, Notes, Phase
from gradscope.code.liveness.opcodes import Action
from gradscope.code.liveness.parts import ANYWHERE, handed_on, place_of, put, rearranged
from gradscope.code.liveness.rules import Machine
from gradscope.code.liveness.survey import Loops, decorated_function, no_grad, survey_of
from gradscope.code.liveness.values import (
    NO_MARKS,
    UNKNOWN,
    Env,
    Invocation,
    Kind,
    Mark,
    Marks,
    Role,
    State,
    Value,
    caught,
    covers,
    join,
    summed,
    union,
)
from gradscope.code.liveness.words import ADDS_ALL, DRAWS, CallKind, kind_of_call
from gradscope.code.names import is_element, is_part

_DEEPEST_CALL = 5
_VISITS_PER_INSTRUCTION = 10  # far above what joins need; code that needs more is given up on


_STORED: Mapping[Kind, Effect] = {
    Kind.SAME: Effect.STORES,
    Kind.SUMMED: Effect.AUGMENTED,
    Kind.DERIVED: Effect.FEEDS,
}

_Question: TypeAlias = tuple[
    int, bool, frozenset[tuple[str, Marks]], tuple[Any, ...]
]  # a function, under no_grad?, what it starts with, what it is given
_Answer: TypeAlias = tuple[
    Env | None, Marks
]  # what it leaves (None: it does not return), what it returns


class _Agenda:
    """The states that are still to be followed, those of the plainest phase first."""

    def __init__(self) -> None:
        self.states: dict[tuple[Phase, int], State] = {}
        self.queued: set[tuple[Phase, int]] = set()
        self.waiting: list[tuple[Phase, int, int]] = []  # phase, distance, instruction
        self.thrown: dict[tuple[Phase, int], Env] = {}  # the environment that a handler had last
        self.levels_differ = False  # what a subscript takes depends on the iteration

    def arrive(self, phase: Phase, index: int, state: State, distance: int) -> None:
        """Add a state at an instruction, unless all that can come of it is known."""
        for plainer in phase.plainer():
            known = self.states.get((plainer, index))
            alike = plainer.level == phase.level or not self.levels_differ
            if known is not None and alike and covers(known, state):
                return
        key = (phase, index)
        self.states[key] = join(self.states[key], state) if key in self.states else state
        if key not in self.queued:
            self.queued.add(key)
            heapq.heappush(self.waiting, (phase, distance, index))


class Tracker(Machine):
    """Follows marks through a code object, and into the functions it calls, where known."""

    def __init__(
        self,
        code: CodeType,
        notes: Notes,
        resolve: Resolve | None,
        *,
        caller: Tracker | None = None,
        grad_off: bool = False,
    ) -> None:
        super().__init__(code, grad_off=grad_off)
        self.notes = notes
        self.resolve = resolve
        self.functions: dict[str, Value] = {
            **(caller.functions if caller else {}),
            **survey_of(code).functions,
        }
        self.running: frozenset[CodeType] = (caller.running if caller else frozenset()) | {code}
        self.answers: dict[_Question, _Answer] = caller.answers if caller else {}
        self.is_top = caller is None
        self.loops_at_hand: Loops | None = caller.loops_at_hand if caller else None
        self.phase: Phase = caller.phase if caller else Phase()
        self.loops: tuple[Loop, ...] = ()
        self.distance: int = caller.distance if caller else 0
        self.picks = False  # a subscript of what is tracked was met
        self.returned: Marks = NO_MARKS
        self.left: State | None = None  # the environments at all returns, joined

    def know_functions(self, given: Mapping[str, Value]) -> None:
        """Know the functions that the code is given."""
        self.functions.update((name, value) for name, value in given.items() if value.codes)

    def follow(self, starts: list[tuple[Phase, int, State]], loops: tuple[Loop, ...] = ()) -> None:
        """Follow all paths from ``starts``; ``loops`` are around them, innermost first."""
        self.loops = loops
        agenda = _Agenda()
        for phase, index, state in starts:
            agenda.arrive(phase, index, state, self.distance)
        for _ in range(_VISITS_PER_INSTRUCTION * len(self.flow.instructions)):
            if not agenda.waiting:
                return
            self.phase, self.distance, index = heapq.heappop(agenda.waiting)
            agenda.queued.discard((self.phase, index))
            self._go_on(index, agenda.states[self.phase, index], agenda)
            agenda.levels_differ = self.picks

    def _go_on(self, index: int, state: State, agenda: _Agenda) -> None:
        """Follow the code down to the next instruction that can be reached in several ways."""
        while self._is_alive(state):
            self.distance += 1
            instruction = self.flow.instructions[index]
            handler, jump = instruction.handler, instruction.jump
            if handler >= 0 and agenda.thrown.get((self.phase, handler)) is not state.env:
                agenda.thrown[self.phase, handler] = state.env
                phase = self._crossing(index, handler)._replace(on_exception=True)
                kept = State(state.env, caught(state.stack, instruction))
                agenda.arrive(phase, handler, kept, self.distance)
            if jump >= 0:
                after = self.execute(index, state, taken=True)
                agenda.arrive(self._crossing(index, jump), jump, after, self.distance)
            if not instruction.falls or _is_over(instruction, state):
                if instruction.action in (Action.RETURN, Action.RETURN_CONSTANT):
                    self._leave(self.execute(index, state))
                return
            state = self.execute(index, state)
            self.phase = self._crossing(index, index + 1)
            index += 1
            if index in self.flow.joins:
                agenda.arrive(self.phase, index, state, self.distance)
                return

    def _crossing(self, source: int, target: int) -> Phase:
        """Return the phase after a step."""
        if not self.loops:  # in a callee the caller's holds
            return self.phase
        level = level_after(self.loops, self.phase.level, source, target)
        return self.phase if level == self.phase.level else Phase(self.phase.on_exception, level)

    def _is_alive(self, state: State) -> bool:
        """Return whether there is anything to follow, and so anything left at the return."""
        if state.env or any(value.marks for value in state.stack):
            return True
        self.left = self.left or State({}, ())
        return False

    def _leave(self, state: State) -> None:
        self.left = state if self.left is None else join(self.left, state)

    def load(self, env: Env, path: str, index: int) -> Marks:
        """Return the marks of the path and its elements; a name read here gets a note."""
        found = env.get(path, NO_MARKS)
        for key, marks in env.items():
            if key.startswith(path) and is_element(key, path):
                found |= put(marks, key[len(path) :])
        if not found:
            return NO_MARKS
        return frozenset(self._taken(mark, path, index) for mark in found)

    def _taken(self, mark: Mark, path: str, index: int) -> Mark:
        if mark.kind is not Kind.SAME or mark.read >= 0:
            return mark
        note = Note(mark.name, path, self.code, index, self.phase, self.distance)
        return mark._replace(read=self.notes.add(note))

    def narrow(self, marks: Marks, path: str, index: int) -> None:
        """Move the read of a tracked element from its container to where it is taken."""
        for mark in marks:
            if (
                mark.name == path
                and mark.read >= 0
                and (note := self.notes.all[mark.read]).code is self.code
            ):
                note.index, note.via = index, path

    def pick(self, marks: Marks, at: int) -> Marks:
        """Leave out the elements that a subscript cannot take; note where that is not known."""
        if self.loops_at_hand is None or not any(map(place_of, marks)):
            return marks
        self.picks = True
        keys = self.loops_at_hand.keys(self.code, at, self.phase.level, is_top=self.is_top)
        if keys is None:
            self.notes.doubt(mark for mark in marks if place_of(mark))
        if keys is None or ANYWHERE in keys:
            return marks
        return frozenset(mark for mark in marks if place_of(mark) in {"", *keys})

    def function(self, path: str) -> Value:
        """Return a function made by this code or by its callers."""
        return self.functions.get(path, UNKNOWN)

    def bind(
        self, env: Env, path: str, value: Value, at: int, *, weak: bool = False, inner: bool = False
    ) -> Env:
        """Rebind the path: what it held is gone, and it holds what ``value`` carries."""
        stored = self._stored(value.marks, local=inner or (not self.is_top and path.isidentifier()))
        parts = {
            path + key[len(value.path) :]: env[key]
            for key in env
            if value.path and is_part(key, value.path)
        }
        new = dict(env) if weak else dict(self.forget(env, path))
        if path and stored:
            new[path] = new.get(path, NO_MARKS) | stored
        if path and value.path != path:
            new.update(parts)
        return env if new == env else new

    def _stored(self, marks: Marks, *, local: bool = False) -> Marks:
        """Return the marks of what was stored; a callee's own variable is no store."""
        for mark in marks:
            if mark.kind is not Kind.BUILT and not (local and mark.kind is Kind.SAME):
                self.notes.use(mark, _STORED[mark.kind])
        return frozenset(
            mark._replace(read=mark.read if local else -1)
            if mark.kind is Kind.SAME
            else Mark(mark.name, Kind.BUILT, mark.read)
            for mark in marks
        )

    def forget(self, env: Env, path: str) -> Env:
        """Drop what is known of the path."""
        gone = [key for key in env if key == path or is_part(key, path)]
        return {key: marks for key, marks in env.items() if key not in gone} if gone else env

    def gave(self, value: Value, *, awaiting: bool = False) -> None:
        """Hand the marks to the caller; where there is none, the value is stored out of sight."""
        if self.is_top:
            self._stored(
                frozenset(m for m in value.marks if m.kind is Kind.SAME)
                if awaiting
                else value.marks
            )
        self.returned |= value.marks

    def call(self, env: Env, call: Invocation) -> tuple[Env, Value]:
        """Return what a call does with the graphs that it is given."""
        callee = call.callee
        if callee.role is Role.NO_GRAD_EXIT:
            return env, UNKNOWN
        if (decorated := decorated_function(call)) is not None:
            return env, decorated
        if known := self._known(callee):
            return self._run_all(known, env, call)
        given = union(call.arguments)
        match kind_of_call(callee.path, callee.attribute, dropped=self._is_dropped(call)):
            case CallKind.HARMLESS:
                return env, UNKNOWN
            case CallKind.NO_GRAD:
                return env, no_grad(call)
            case CallKind.BACKWARD:
                self._backward(callee.marks or _roots(call), call.at)
                return env, UNKNOWN
            case CallKind.GRAD:
                self._backward(_roots(call), call.at)
                kept = (
                    self.derive(given, call.stack) if "create_graph" in call.keywords else NO_MARKS
                )
                return env, Value(marks=kept)
            case CallKind.PART:
                return env, Value(marks=handed_on(call))
            case CallKind.APPEND if callee.owner not in ("self", "cls"):
                is_one = callee.attribute not in ADDS_ALL
                added = Value(marks=put(given) if is_one else rearranged(given))
                return self.bind(env, callee.owner, added, call.at, weak=True), UNKNOWN
            case CallKind.CLEAR | CallKind.DETACH_IN_PLACE:
                return self.forget(env, callee.owner) if callee.owner else env, UNKNOWN
            case CallKind.IN_PLACE:
                marks = summed(self.derive(given, call.stack))
                changed = Value(marks=marks | self.derive(callee.marks, call.stack))
                return self.bind(env, callee.owner, changed, call.at, weak=True), changed
        return self._unknown_call(env, call)

    def _known(self, callee: Value) -> list[Callee]:
        """Return the functions that a call may run, of those that are known."""
        if callee.codes:
            no_grad = callee.role is Role.NO_GRAD
            return [Callee(code, no_grad=no_grad) for code in callee.codes]
        found = self.resolve(callee.path) if self.resolve is not None and callee.path else None
        return [found] if found is not None else []

    def _is_dropped(self, call: Invocation) -> bool:
        follower = self.next_instruction(call.at)
        return follower is not None and follower.opname == "POP_TOP"

    def _unknown_call(self, env: Env, call: Invocation) -> tuple[Env, Value]:
        """Make an unknown call: it may call what it is given, its result is built on it."""
        marks = self.derive(union(call.arguments) | call.callee.marks, call.stack)
        if call.callee.attribute in DRAWS:
            self.notes.doubt(mark for mark in union(call.arguments) if place_of(mark))
        bare = call._replace(arguments=(), keywords=())
        for argument in call.arguments:
            if argument.codes:
                marks |= self._run_all(self._known(argument), env, bare)[1].marks
            if self._is_dropped(call):
                for mark in argument.marks:
                    self.notes.use(
                        mark, Effect.STORES if mark.kind is not Kind.BUILT else Effect.HARMLESS
                    )
        return env, Value(marks=marks)

    def _backward(self, marks: Marks, index: int) -> None:
        for mark in marks:
            self.notes.use(
                mark,
                Effect.HARMLESS if mark.kind is Kind.BUILT else Effect.BACKWARD,
                (self.code, index),
            )

    def _run_all(self, callees: list[Callee], env: Env, call: Invocation) -> tuple[Env, Value]:
        result: State | None = None
        marks = NO_MARKS
        for callee in callees:
            if callee.code in self.running or len(self.running) > _DEEPEST_CALL:
                continue  # the outer run of the same function says it all
            after, given = self._run_callee(callee, env, call)
            marks |= given
            state = State(after, ())
            result = state if result is None else join(result, state)
        return (env if result is None else result.env), Value(marks=marks)

    def _run_callee(self, callee: Callee, env: Env, call: Invocation) -> tuple[Env, Marks]:
        """Follow the marks through a function: what it leaves behind, what it returns."""
        crossing = Crossing(self.code, callee, env, call)
        off = callee.no_grad or self.gradients_off(call.stack)
        if not crossing.start:
            return env, NO_MARKS
        paths = (callee.owner, *((value.path, value.codes) for value in call.arguments))
        question = (id(callee.code), off, frozenset(crossing.start.items()), paths)
        if question not in self.answers:
            resolve = names_in(callee, self.code, self.resolve, call)
            inner = Tracker(callee.code, self.notes, resolve, caller=self, grad_off=off)
            inner.know_functions(arguments(callee, call))
            inner.follow([(self.phase, 0, State(crossing.start, ()))])
            self.answers[question] = (
                inner.left.env if inner.left is not None else None,
                inner.returned,
            )
        left, returned = self.answers[question]
        return (env if left is None else crossing.after(left)), returned


def _is_over(instruction: Instruction, state: State) -> bool:
    """Return whether a loop ends here, as its iterator has nothing left to give."""
    is_next = instruction.action is Action.NEXT and state.stack
    return bool(is_next) and state.stack[-1].role is Role.SPENT


def _roots(call: Invocation) -> Marks:
    """Return the marks of what ``backward(...)`` or ``grad(...)`` starts from."""
    named = call.named
    roots = [
        *call.arguments[: min(call.positional, 1)],
        *(named[name] for name in ("tensors", "outputs", "loss") if name in named),
    ]
    return union(tuple(roots))

"""Defines for each kind of instruction what it does with the abstract values on the stack."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from types import CodeType, NoneType
from typing import Final, NamedTuple, TypeAlias

from gradscope.code.liveness.flow import MISSING, Flow, Instruction, flow_of
from gradscope.code.liveness.opcodes import FIRST_IN_PLACE, NULL_FIRST, SUBSCRIPT_OPERATOR, Action
from gradscope.code.liveness.parts import (
    ANYWHERE,
    blurred,
    given_one_by_one,
    of_attribute,
    place_of,
    put,
    rearranged,
    sliced,
    taken,
    transposed,
)
from gradscope.code.liveness.values import (
    NO_MARKS,
    NULL,
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
    attribute_path,
    element_path,
    summed,
    take,
    union,
)
from gradscope.code.liveness.words import HARMLESS_ATTRIBUTES, PART_METHODS
from gradscope.code.names import is_part

Result: TypeAlias = tuple[Env, Stack]


class Machine(ABC):
    """Executes instructions by their rules; subclasses define reading, binding and calling."""

    def __init__(self, code: CodeType, *, grad_off: bool = False) -> None:
        self.code = code
        self.flow: Flow = flow_of(code)
        self.grad_off = grad_off
        self._plain: dict[tuple[str, str], Value] = {}

    def execute(self, index: int, state: State, *, taken: bool = False) -> State:
        """Return the state after an instruction; ``taken``: after its jump."""
        instruction = self.flow.instructions[index]
        if instruction.action is Action.KEEP:
            return state
        effect = instruction.jump_effect if taken else instruction.effect
        step = Step(self, instruction, index, state.env, state.stack, effect)
        return State(*RULES[instruction.action](step))

    @abstractmethod
    def load(self, env: Env, path: str, index: int) -> Marks:
        """Return the marks of a path that is read at instruction ``index``."""

    def narrow(self, marks: Marks, path: str, index: int) -> None:  # noqa: B027 - most machines need no note of it
        """Note that ``index`` takes the element ``path`` of a container that was read."""

    def pick(self, marks: Marks, at: int) -> Marks:
        """Return the marks of a container whose elements a subscript with a key that is not
        constant can take.
        """
        return marks

    @abstractmethod
    def function(self, path: str) -> Value:
        """Return a value whose ``codes`` and ``role`` tell which functions the path may be."""

    @abstractmethod
    def bind(
        self, env: Env, path: str, value: Value, at: int, *, weak: bool = False, inner: bool = False
    ) -> Env:
        """Store ``value`` at ``path``; an empty path is one that is not known.

        ``weak``: what was there stays. ``inner``: into a variable of an inlined comprehension.
        """

    @abstractmethod
    def forget(self, env: Env, path: str) -> Env:
        """Delete or empty the path."""

    @abstractmethod
    def call(self, env: Env, call: Invocation) -> tuple[Env, Value]:
        """Return the environment after a call, and its result."""

    @abstractmethod
    def gave(self, value: Value, *, awaiting: bool = False) -> None:
        """Take a value that is returned or yielded; ``awaiting``: to an ``await``."""

    def derive(self, marks: Marks, stack: Stack) -> Marks:
        """Return the marks of what is computed from marked values: none where gradients are off."""
        if not marks or self.gradients_off(stack):
            return NO_MARKS
        return frozenset(
            m._replace(rest="") if m.kind is Kind.BUILT else Mark(m.name, Kind.DERIVED, m.read)
            for m in marks
        )

    def gradients_off(self, stack: Stack) -> bool:
        """Return whether ``no_grad`` is on: its exit function is then on the stack."""
        return self.grad_off or any(value.role is Role.NO_GRAD_EXIT for value in stack)

    def next_instruction(self, index: int) -> Instruction | None:
        """Return the instruction that follows in the code."""
        instructions = self.flow.instructions
        return instructions[index + 1] if index + 1 < len(instructions) else None

    def get(self, path: str, marks: Marks, name: str, owner: str) -> Value:
        """Return the value of a variable or attribute; those without marks are made once."""
        plain = self._plain.get((path, name))
        if plain is None:
            known = self.function(path)
            plain = self._plain[path, name] = Value(
                path, NO_MARKS, name, owner, known.codes, role=known.role
            )
        return plain._replace(marks=marks) if marks else plain

    def read(self, env: Env, name: str, index: int) -> Value:
        """Return the value of a variable; an empty name is a cell's, which is read later."""
        if not name:
            return UNKNOWN
        return self.get(name, self.load(env, name, index), name, "")


class Step(NamedTuple):
    """One instruction that a machine executes, what is known before, how the stack grows."""

    machine: Machine
    instruction: Instruction
    at: int
    env: Env
    stack: Stack
    effect: int

    def pop(self, count: int) -> tuple[Stack, Stack]:
        """Return the stack without its top values, and those."""
        return take(self.stack, count)

    def pop_all(self) -> tuple[Stack, Stack]:
        """Return the stack without what the instruction replaces by one value, and those values."""
        return take(self.stack, 1 - self.effect)

    def read(self, name: str) -> Value:
        """Return the value of a variable."""
        return self.machine.read(self.env, name, self.at)

    def bind(self, path: str, value: Value, *, weak: bool = False) -> Env:
        """Store a value at a path."""
        return self.machine.bind(self.env, path, value, self.at, weak=weak)

    def forget(self, path: str) -> Env:
        """Delete a path; an empty one is not known."""
        return self.machine.forget(self.env, path) if path else self.env

    def bind_name(self, name: str, value: Value) -> Step:
        """Store a value in a variable, which may be that of an inlined comprehension."""
        inner = any(v.role is Role.SHADOWED and v.attribute == name for v in self.stack)
        env = self.machine.bind(self.env, name, value, self.at, inner=inner)
        return self._replace(env=env)


Rule: TypeAlias = Callable[[Step], Result]


def _subscript(s: Step) -> Result:
    """Take an element of a container, or a slice of it."""
    rest, (container, key) = s.pop(2)
    if not isinstance(key.constant, int | str | slice) and container.marks:
        container = container._replace(marks=s.machine.pick(container.marks, s.at))
    if _is_slice(key):
        return s.env, (*rest, Value(marks=sliced(container.marks, key.constant)))
    path = element_path(container, key)
    marks = taken(of_part(container, path), _part_named(key))
    s.machine.narrow(marks, path, s.at)
    return s.env, (*rest, Value(path, marks))


def of_part(whole: Value, path: str) -> Marks:
    """Return the marks of ``whole`` that may be of its part ``path``.

    The name that the object had at the start tells only as long as nothing else tells its place: it
    may have moved, as in ``kept['last'] = kept['now']``.
    """
    if not path or not whole.marks:
        return whole.marks
    is_key = path.endswith("]")  # a method of the object is none of what it holds
    return frozenset(
        m
        for m in whole.marks
        if (is_key and place_of(m))
        or not is_part(m.name, whole.path)
        or m.name == path
        or is_part(m.name, path)
    )


def _part_named(key: Value) -> str:
    return f"[{key.constant!r}]" if isinstance(key.constant, int | str) else ANYWHERE


def _slice(s: Step) -> Result:
    if s.instruction.opname == "BUILD_SLICE":
        rest, bounds = s.pop_all()
        return s.env, (*rest, _slice_of(bounds))
    rest, popped = s.pop_all()
    container, key = popped[0], _slice_of(popped[1:])
    if not isinstance(key.constant, int | str | slice) and container.marks:
        container = container._replace(marks=s.machine.pick(container.marks, s.at))
    return s.env, (*rest, Value(marks=sliced(container.marks, key.constant)))


def _slice_of(bounds: Stack) -> Value:
    known = all(isinstance(bound.constant, int | NoneType) for bound in bounds)
    constant = slice(*(bound.constant for bound in bounds)) if known else MISSING
    return Value(constant=constant, role=Role.SLICE)


def _is_slice(key: Value) -> bool:
    return key.role is Role.SLICE or isinstance(key.constant, slice)


def _is_whole(key: Value) -> bool:
    return isinstance(key.constant, slice) and key.constant == slice(None)


def _store_subscript(s: Step) -> Result:
    rest, (value, container, key) = s.pop(3)
    path = element_path(container, key)
    if not path:
        marks = rearranged(value.marks) if _is_slice(key) else put(value.marks)
        changed = value._replace(marks=marks)
        return s.bind(container.path, changed, weak=not _is_whole(key)), rest
    return s.bind(path, value), rest


def _store_slice(s: Step) -> Result:
    rest, (value, container, *bounds) = s.pop(4)
    value = value._replace(marks=rearranged(value.marks))
    is_whole = _is_whole(_slice_of(tuple(bounds)))
    return s.bind(container.path, value, weak=not is_whole), rest


def _delete_subscript(s: Step) -> Result:
    rest, (container, key) = s.pop(2)
    return s.forget(container.path if _is_whole(key) else element_path(container, key)), rest


def _build(s: Step) -> Result:
    rest, popped = s.pop_all()
    if s.instruction.opname in ("BUILD_TUPLE", "BUILD_LIST"):
        each = (put(value.marks, f"[{i}]") for i, value in enumerate(popped))
        return s.env, (*rest, Value(marks=NO_MARKS.union(*each), items=popped))
    is_dict = s.instruction.opname == "BUILD_MAP"  # a dict is taken for its values
    return s.env, (*rest, Value(marks=put(union(popped[1::2] if is_dict else popped))))


def _add_to(s: Step) -> Result:
    rest, popped = s.pop(-s.effect)
    if not 0 < s.instruction.arg <= len(rest):
        return s.env, rest
    place = len(rest) - s.instruction.arg
    container = rest[place]
    added = popped[-1:]  # of a dict's item the value
    items = container.items and (*container.items, *added)
    is_one = s.instruction.opname in ("LIST_APPEND", "SET_ADD", "MAP_ADD")
    marks = put(union(added)) if is_one else rearranged(union(added))
    grown = Value(marks=container.marks | marks, items=items)
    return s.env, (*rest[:place], grown, *rest[place + 1 :])


def _unpack(s: Step) -> Result:
    rest, (value,) = s.pop(1)
    count = s.effect + 1
    if s.instruction.opname == "UNPACK_SEQUENCE" and len(value.items) == count:
        return s.env, rest + value.items[::-1]
    if s.instruction.opname != "UNPACK_SEQUENCE":
        return s.env, rest + (Value(marks=blurred(value.marks)),) * count
    places = reversed(range(count))
    return s.env, rest + tuple(Value(marks=taken(value.marks, f"[{i}]")) for i in places)


def _next(s: Step) -> Result:
    if s.effect < 0:  # 3.11 pops the iterator as it leaves the loop
        return s.env, s.pop(-s.effect)[0]
    iterator = s.stack[-1] if s.stack else UNKNOWN
    return s.env, (*s.stack, Value(marks=given_one_by_one(iterator.marks)))


def _keep(s: Step) -> Result:
    return s.env, s.stack


def _pop(s: Step) -> Result:
    return s.env, s.pop(-s.effect)[0]


def _fresh(s: Step) -> Result:
    if s.effect > 0:
        return s.env, s.stack + (UNKNOWN,) * s.effect
    return s.env, (*s.pop_all()[0], UNKNOWN)


def _part(s: Step) -> Result:
    if s.effect > 0:
        return s.env, s.stack + (UNKNOWN,) * s.effect
    rest, popped = s.pop_all()
    return s.env, (*rest, Value(marks=union(popped)))


def _operate(s: Step) -> Result:
    rest, popped = s.pop_all()
    return s.env, (*rest, Value(marks=s.machine.derive(union(popped), s.stack)))


def _binary(s: Step) -> Result:
    if s.instruction.arg == SUBSCRIPT_OPERATOR:
        return _subscript(s)
    rest, (left, right) = s.pop(2)
    if not (left.marks or right.marks):
        return s.env, (*rest, UNKNOWN)
    follower = s.machine.next_instruction(s.at)
    target = follower.name if follower is not None and follower.action is Action.STORE else ""
    if s.instruction.arg >= FIRST_IN_PLACE or (target and target == left.path):
        marks = _summed(s, left, right)  # total += loss, total = total + loss
    elif target and target == right.path:
        marks = _summed(s, right, left)
    else:
        marks = s.machine.derive(left.marks | right.marks, s.stack)
    return s.env, (*rest, Value(marks=marks))


def _summed(s: Step, total: Value, added: Value) -> Marks:
    """Return the marks of ``total += added``."""
    both = total.marks | added.marks
    if added.items:  # a list grows by a list
        return both
    return NO_MARKS if s.machine.gradients_off(s.stack) else summed(both)


def _constant(s: Step) -> Result:
    return s.env, (*s.stack, Value(constant=s.instruction.constant))


def _null(s: Step) -> Result:
    return s.env, (*s.stack, NULL)


def _load(s: Step) -> Result:
    value = s.read(s.instruction.name)
    pushed: Stack = (value,)
    if s.instruction.null:
        pushed = (NULL, value) if NULL_FIRST else (value, NULL)
    return s.env, s.pop(len(pushed) - s.effect)[0] + pushed


def _load_pair(s: Step) -> Result:
    return s.env, (*s.stack, s.read(s.instruction.name), s.read(s.instruction.second))


def _load_and_clear(s: Step) -> Result:
    name = s.instruction.name
    marks = s.env.get(name, NO_MARKS)
    silent = frozenset(Mark(m.name, m.kind, -1) for m in marks)  # this is not a read
    shadowed = Value(marks=silent, attribute=name, role=Role.SHADOWED)
    return s.forget(name), (*s.stack, shadowed)


def _store(s: Step) -> Result:
    rest, (value,) = s.pop(1)
    return s.bind_name(s.instruction.name, value).env, rest


def _store_pair(s: Step) -> Result:
    rest, (second, first) = s.pop(2)
    names = s.instruction.name, s.instruction.second
    return s.bind_name(names[0], first).bind_name(names[1], second).env, rest


def _store_load(s: Step) -> Result:
    rest, (value,) = s.pop(1)
    after = s.bind_name(s.instruction.name, value)
    return after.env, (*rest, after.read(s.instruction.second))


def _delete(s: Step) -> Result:
    return s.forget(s.instruction.name), s.stack


def _attribute(s: Step) -> Result:
    rest, (owner,) = s.pop(1)
    name = s.instruction.name
    path = attribute_path(owner, name)
    marks = NO_MARKS
    if name not in HARMLESS_ATTRIBUTES:
        marks = of_attribute(of_part(owner, path), name)
        if name in PART_METHODS:  # of a container, whose elements it gives
            marks |= frozenset(mark for mark in owner.marks if mark.rest.startswith("["))
    if path:
        marks |= s.machine.load(s.env, path, s.at)
    value = s.machine.get(path, marks, name, owner.path)
    return s.env, (*rest, value, NULL) if s.instruction.null else (*rest, value)


def _super(s: Step) -> Result:
    name = s.instruction.name
    value = Value(f"super().{name}", NO_MARKS, name, "super()")
    return s.env, s.pop(3)[0] + ((value, NULL) if s.instruction.null else (value,))


def _store_attribute(s: Step) -> Result:
    rest, (value, owner) = s.pop(2)
    return s.bind(attribute_path(owner, s.instruction.name), value), rest


def _delete_attribute(s: Step) -> Result:
    rest, (owner,) = s.pop(1)
    return s.forget(attribute_path(owner, s.instruction.name)), rest


def _copy(s: Step) -> Result:
    depth = s.instruction.arg
    return s.env, (*s.stack, s.stack[-depth] if depth <= len(s.stack) else UNKNOWN)


def _swap(s: Step) -> Result:
    rest, popped = s.pop(s.instruction.arg)
    return s.env, (*rest, popped[-1], *popped[1:-1], popped[0])


def _function(s: Step) -> Result:
    rest, popped = s.pop_all()
    codes = tuple(value.constant for value in popped if isinstance(value.constant, CodeType))
    return s.env, (*rest, Value(marks=union(popped), codes=codes))


def _function_attribute(s: Step) -> Result:
    rest, (extra, function) = s.pop(2)
    return s.env, (*rest, function._replace(marks=function.marks | extra.marks))


def _call(s: Step) -> Result:
    rest, popped = s.pop(s.instruction.arg + 2)
    return _called(s, rest, popped, s.instruction.keywords)


def _call_kw(s: Step) -> Result:
    rest, popped = s.pop(s.instruction.arg + 3)
    names = popped[-1].constant
    return _called(s, rest, popped[:-1], names if isinstance(names, tuple) else ())


def _call_ex(s: Step) -> Result:
    rest, popped = s.pop_all()
    if popped and any(value.path == "zip" for value in popped[:2]):
        return s.env, (*rest, Value(marks=transposed(union(popped))))
    popped = tuple(v._replace(marks=blurred(v.marks)) if v.marks else v for v in popped)
    return _called(s, rest, popped, ())


def _called(s: Step, rest: Stack, popped: Stack, keywords: tuple[str, ...]) -> Result:
    # Callable and NULL stand in either order, by version; without a NULL the second value is the
    # first argument.
    callee, *arguments = (v for i, v in enumerate(popped) if i > 1 or v.role is not Role.NULL)
    invocation = Invocation(callee, tuple(arguments), keywords, s.stack, s.at)
    env, result = s.machine.call(s.env, invocation)
    return env, (*rest, result)


def _exit_of(manager: Value) -> Role:
    return Role.NO_GRAD_EXIT if manager.role is Role.NO_GRAD else Role.PLAIN


def _enter(s: Step) -> Result:
    rest, (manager,) = s.pop(1)
    return s.env, (*rest, Value(role=_exit_of(manager)), Value(marks=manager.marks))


def _enter_special(s: Step) -> Result:
    # 3.14 pushes the manager's __enter__ or __exit__, and the manager or NULL.
    rest, (manager,) = s.pop(1)
    return s.env, (*rest, Value(marks=manager.marks, role=_exit_of(manager)), NULL)


def _send(s: Step) -> Result:
    rest, (receiver, value) = s.pop(2)
    result = Value(marks=receiver.marks | value.marks)
    is_end = s.effect < 0  # 3.11 pops the receiver as it ends
    return s.env, (*rest, result) if is_end else (*rest, receiver, result)


def _yield(s: Step) -> Result:
    rest, (value,) = s.pop(1)
    before = s.machine.flow.instructions[s.at - 1]
    awaiting = s.at > 0 and before.action is Action.SEND
    s.machine.gave(value if awaiting else Value(marks=put(value.marks)), awaiting=awaiting)
    return s.env, (*rest, UNKNOWN)


def _return(s: Step) -> Result:
    rest, (value,) = s.pop(1)
    s.machine.gave(value)
    return s.env, rest


def _return_generator(s: Step) -> Result:
    return s.env, (*s.stack, UNKNOWN)  # the first value sent in; a POP_TOP follows


_return_constant = _keep

RULES: Final[dict[Action, Rule]] = {
    action: globals()[f"_{action.name.lower()}"] for action in Action
}
"""For each action the function of its name."""

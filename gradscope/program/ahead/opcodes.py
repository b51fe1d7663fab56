"""Says what each instruction of Python 3.11 to 3.14 does, in one table."""

from __future__ import annotations

import operator
import sys
import types
from collections.abc import Callable
from typing import Any, Final

from gradscope.code.bytecode import MISSING, NULL_FIRST, Instruction
from gradscope.program.ahead import iteration, models
from gradscope.program.ahead import values as v
from gradscope.program.ahead.frames import Frame
from gradscope.program.ahead.machine import RULES, Machine
from gradscope.program.containers import derives, is_a

Rule = Callable[["Machine", Frame, Instruction], "tuple[str, Any] | None"]
_OLD: Final = sys.version_info < (3, 12)


# A rule is named as its instruction: ``_on_make_cell``.


def _also(names: str) -> Callable[[Rule], Rule]:
    """Return what has a rule do other instructions as well."""

    def add(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names.split(), rule))
        return rule

    return add


@_also(
    "RESUME CACHE PRECALL KW_NAMES COPY_FREE_VARS EXTENDED_ARG SETUP_ANNOTATIONS NOT_TAKEN TO_BOOL"
)
def _on_nop(m: Machine, f: Frame, i: Instruction) -> None:
    """Do nothing: TO_BOOL leaves it to the jump that follows."""


def _on_make_cell(m: Machine, f: Frame, i: Instruction) -> None:
    f.variables[i.slot] = v.Cell(f.variables[i.slot])


# the stack


@_also("POP_ITER END_FOR")
def _on_pop_top(m: Machine, f: Frame, i: Instruction) -> None:
    f.pop(-i.effect)


def _on_swap(m: Machine, f: Frame, i: Instruction) -> None:
    f.stack[-1], f.stack[-i.arg] = f.stack[-i.arg], f.stack[-1]


# variables


@_also("LOAD_FAST_CHECK LOAD_FAST_BORROW LOAD_CLOSURE")
def _on_load_fast(m: Machine, f: Frame, i: Instruction) -> None:
    value = f.variables[i.slot]
    if value is v.NULL:
        m.throw(UnboundLocalError, i.name)
    f.stack.append(value)
    m.note_read(value, f, first=f.live is not None and i.slot not in f.stored)


def _on_load_fast_and_clear(m: Machine, f: Frame, i: Instruction) -> None:
    f.stack.append(f.variables[i.slot])
    f.variables[i.slot] = v.NULL


@_also("STORE_FAST_MAYBE_NULL")
def _on_store_fast(m: Machine, f: Frame, i: Instruction) -> None:
    f.variables[i.slot] = f.stack.pop()
    f.stored.add(i.slot)


def _on_delete_fast(m: Machine, f: Frame, i: Instruction) -> None:
    f.variables[i.slot] = v.NULL


def _on_load_deref(m: Machine, f: Frame, i: Instruction) -> None:
    value = m.overlay.cell(f.variables[i.slot])
    if value is v.NULL:
        m.throw(NameError, i.name)
    f.stack.append(value)
    m.note_read(value, f, first=m.overlay.is_untouched(f.variables[i.slot]))


def _global(m: Machine, f: Frame, name: str) -> Any:
    space = m.overlay.view(f.space)
    if name in space:
        return space[name]
    found = models.BUILTINS.get(name, MISSING)
    return m.throw(NameError, name) if found is MISSING else found


@_also("LOAD_NAME LOAD_FROM_DICT_OR_GLOBALS")
def _on_load_global(m: Machine, f: Frame, i: Instruction) -> None:
    if i.opname == "LOAD_FROM_DICT_OR_GLOBALS":
        v.lost("a class body")
    names = m.overlay.view(f.names) if i.opname == "LOAD_NAME" else {}
    value = names[i.name] if i.name in names else _global(m, f, i.name)
    f.push(value, i.null)
    m.note_read(value, f, first=f.space.get(i.name) is value)


@_also("STORE_GLOBAL")
def _on_store_name(m: Machine, f: Frame, i: Instruction) -> None:
    space = f.names if i.opname == "STORE_NAME" else f.space
    m.overlay.to_write(space)[i.name] = f.stack.pop()


@_also("DELETE_GLOBAL")
def _on_delete_name(m: Machine, f: Frame, i: Instruction) -> None:
    space = f.names if i.opname == "DELETE_NAME" else f.space
    m.overlay.to_write(space).pop(i.name, None)


# attributes and elements


@_also("LOAD_METHOD LOAD_SUPER_ATTR")
def _on_load_attr(m: Machine, f: Frame, i: Instruction) -> None:
    owner = v.Super(*f.pop(3)[1:]) if i.opname == "LOAD_SUPER_ATTR" else f.stack.pop()
    value = m.attribute(owner, i.name)
    f.push(value, i.null)
    m.note_read(value, f, first=m.overlay.is_untouched(owner))


def _on_binary_slice(m: Machine, f: Frame, i: Instruction) -> None:
    owner, start, stop = f.pop(3)
    f.stack.append(iteration.item(m, owner, slice(start, stop)))


@_also("STORE_SLICE")
def _on_store_subscr(m: Machine, f: Frame, i: Instruction) -> None:
    value, owner, *key = f.pop(-i.effect)
    iteration.set_item(m, owner, slice(*key) if len(key) > 1 else key[0], value)


def _on_delete_subscr(m: Machine, f: Frame, i: Instruction) -> None:
    owner, key = f.pop(2)
    m.method(owner, "__delitem__", key)


# operators

_SYMBOLS: Final = (
    *("add", "and_", "floordiv", "lshift", "matmul", "mul", "mod", "or_", "pow", "rshift"),
    *("sub", "truediv", "xor"),
)
"""The operators of BINARY_OP by its argument; those in place follow in the same order."""
_SUBSCRIPT: Final = 26  # the argument of BINARY_OP for `a[i]`, from Python 3.14 on
_MOST_AMONG: Final = 64  # elements of `step in {40, 90}` for which it is known when that turns
_COMMON: Final = (AssertionError, NotImplementedError, tuple, all, any)
# COMPARE_OP has its operator above this many bits of its argument; the lower ones are a hint and a
# flag.
_COMPARED: Final = 0 if _OLD else 4 if sys.version_info < (3, 13) else 5
_COMPARE: Final = (operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge)


@_also("BINARY_SUBSCR")
def _on_binary_op(m: Machine, f: Frame, i: Instruction) -> None:
    left, right = f.pop(2)
    if i.opname == "BINARY_SUBSCR" or i.arg == _SUBSCRIPT:
        value = iteration.item(m, left, right)
        m.note_read(value, f, first=m.overlay.is_untouched(left))
    else:
        count = len(_SYMBOLS)
        name = _SYMBOLS[i.arg % count]
        value = models.binary(m, name, left, right, in_place=i.arg >= count)
        if name == "mod":
            m.note_compared(f, v.divided(left, right))
    f.stack.append(value)


def _on_compare_op(m: Machine, f: Frame, i: Instruction) -> None:
    left, right = f.pop(2)
    found = models.compare(m, _COMPARE[i.arg >> _COMPARED], left, right)
    m.note_compared(f, v.compared(left, (right,), found))
    f.stack.append(found)


def _on_is_op(m: Machine, f: Frame, i: Instruction) -> None:
    left, right = f.pop(2)
    is_known = type(left) is not v.Unknown and type(right) is not v.Unknown
    f.stack.append((left is right) ^ bool(i.arg) if is_known else v.Unknown(why="is"))


def _on_contains_op(m: Machine, f: Frame, i: Instruction) -> None:
    value, owner = f.pop(2)
    found = models.contains(m, owner, value)
    size = None if found is None else iteration.plain_size(m, owner)
    if size is not None and size <= _MOST_AMONG:
        m.note_compared(f, v.compared(value, iteration.elements_of(m, owner), found))
    f.stack.append(v.Unknown(why="in") if found is None else found ^ bool(i.arg))


def _on_unary_not(m: Machine, f: Frame, i: Instruction) -> None:
    found = m.known_truth(f.stack.pop())
    f.stack.append(v.Unknown(why="not") if found is None else not found)


@_also("UNARY_POSITIVE UNARY_INVERT")
def _on_unary_negative(m: Machine, f: Frame, i: Instruction) -> None:
    names = {"NEGATIVE": "neg", "POSITIVE": "pos", "INVERT": "invert"}
    f.stack.append(models.unary(m, names[i.opname.removeprefix("UNARY_")], f.stack.pop()))


# making


def _on_build_string(m: Machine, f: Frame, i: Instruction) -> None:
    parts = f.pop(i.arg)
    is_known = all(type(part) is str for part in parts)
    f.stack.append("".join(parts) if is_known else v.Unknown(why="text"))


def _on_build_map(m: Machine, f: Frame, i: Instruction) -> None:
    found = f.pop(2 * i.arg)
    f.stack.append(v.OwnDict(zip(map(v.key_of, found[::2]), found[1::2], strict=True)))


@_also("SET_ADD")
def _on_list_append(m: Machine, f: Frame, i: Instruction) -> None:
    value = f.stack.pop()
    to = m.overlay.to_write(f.stack[-i.arg])
    to.append(value) if i.opname == "LIST_APPEND" else to.add(v.key_of(value))


def _on_map_add(m: Machine, f: Frame, i: Instruction) -> None:
    key, value = f.pop(2)
    m.overlay.to_write(f.stack[-i.arg])[v.key_of(key)] = value


@_also("SET_UPDATE")
def _on_list_extend(m: Machine, f: Frame, i: Instruction) -> None:
    found = iteration.drain(m, f.stack.pop())
    to = m.overlay.to_write(f.stack[-i.arg])
    to.extend(found) if i.opname == "LIST_EXTEND" else to.update(map(v.key_of, found))


@_also("DICT_MERGE")
def _on_dict_update(m: Machine, f: Frame, i: Instruction) -> None:
    found = iteration.as_dict(m, f.stack.pop())
    m.overlay.to_write(f.stack[-i.arg]).update(found)


def _on_unpack_ex(m: Machine, f: Frame, i: Instruction) -> None:
    before, after = i.arg & 0xFF, i.arg >> 8
    found = iteration.unpack(m, f.stack.pop(), before + after, more=True)
    end = len(found) - after
    rest = v.OwnList(found[before:end])
    f.stack += reversed([*found[:before], rest, *found[end:]])


@_also("FORMAT_SIMPLE FORMAT_WITH_SPEC CONVERT_VALUE")
def _on_format_value(m: Machine, f: Frame, i: Instruction) -> None:
    spec = f.stack.pop() if i.effect < 0 else ""
    value = f.stack.pop()
    if type(spec) is str and v.is_plain(value) and i.opname != "CONVERT_VALUE":
        f.stack.append(m.compute(format, value, spec))
    else:
        f.stack.append(v.Unknown(why="text"))


def _on_make_function(m: Machine, f: Frame, i: Instruction) -> None:
    made = v.Function(f.stack.pop(), f.space)
    for flag in (8, 4, 2, 1):  # none from Python 3.13 on
        if i.arg & flag:
            _set_part(m, made, flag, f.stack.pop())
    f.stack.append(made)


def _on_set_function_attribute(m: Machine, f: Frame, i: Instruction) -> None:
    made = f.stack.pop()
    _set_part(m, made, i.arg, f.stack.pop())
    f.stack.append(made)


# What SET_FUNCTION_ATTRIBUTE sets, by its argument, from Python 3.13 on; annotations (4) change
# nothing.
_SET: Final = {1: "__defaults__", 2: "__kwdefaults__", 8: "__closure__"}


def _set_part(m: Machine, made: v.Function, flag: int, value: Any) -> None:
    if flag in _SET:
        setattr(made, _SET[flag], m.overlay.view(value))


# calls


def _called(f: Frame) -> tuple[Any, list[Any]]:
    """Take off what is called, and what it is called on."""
    first, second = f.pop(2)
    if NULL_FIRST:
        return (second, []) if first is v.NULL else (first, [second])
    return (first, []) if second is v.NULL else (first, [second])


@_also("CALL_KW")
def _on_call(m: Machine, f: Frame, i: Instruction) -> None:
    names = f.stack.pop() if i.opname == "CALL_KW" else i.keywords
    given = f.pop(i.arg)
    what, on = _called(f)
    count = len(given) - len(names)
    named = dict(zip(names, given[count:], strict=True))
    value = m.call(what, (*on, *given[:count]), named)
    f.stack.append(value)
    m.note_read(value, f)


def _on_call_function_ex(m: Machine, f: Frame, i: Instruction) -> None:
    has_named = bool(i.arg & 1) or sys.version_info >= (3, 14)
    rest = f.stack.pop() if has_named else v.NULL
    named = {} if rest is v.NULL else iteration.as_dict(m, rest)
    given = iteration.drain(m, f.stack.pop())
    what, on = _called(f)
    f.stack.append(m.call(what, (*on, *given), {str(name): each for name, each in named.items()}))


def _on_call_intrinsic_1(m: Machine, f: Frame, i: Instruction) -> None:
    value = f.stack.pop()
    if i.arg == 5:  # unary plus
        value = models.unary(m, "pos", value)
    elif i.arg == 4:
        value = v.Wrapped(value)
    elif i.arg == 6:
        value = tuple(value)
    elif i.arg == 3:  # a StopIteration that leaves a generator
        if m.is_instance(value, StopIteration) is True:
            value = m.exception(RuntimeError, "generator raised StopIteration")
    else:
        v.lost("an intrinsic function")
    f.stack.append(value)


# ways


@_also("JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT JUMP_BACKWARD_QUICK")
def _on_jump_forward(m: Machine, f: Frame, i: Instruction) -> None:
    if f.goes_back():
        m.go_round()
    f.index = i.jump - 1


@_also("POP_JUMP_FORWARD_IF_TRUE POP_JUMP_BACKWARD_IF_TRUE")
@_also("POP_JUMP_IF_FALSE POP_JUMP_FORWARD_IF_FALSE POP_JUMP_BACKWARD_IF_FALSE")
def _on_pop_jump_if_true(m: Machine, f: Frame, i: Instruction) -> None:
    value = f.stack.pop()
    m.note_compared(f, v.compared(value, (0,), value != 0 if v.is_number(value) else None))
    _take(m, f, i, m.known_truth(value), jumps_if="TRUE" in i.opname)


def _take(m: Machine, f: Frame, i: Instruction, known: bool | None, *, jumps_if: bool) -> bool:
    """Go the way that a condition says; return whether that is a jump."""
    if known is None:
        jumps = not m.decide() if "FORWARD" in i.opname or i.jump > f.index else m.decide()
    else:
        jumps = known == jumps_if
    if jumps:
        _on_jump_forward(m, f, i)
    return jumps


@_also("POP_JUMP_FORWARD_IF_NONE POP_JUMP_BACKWARD_IF_NONE")
@_also("POP_JUMP_IF_NOT_NONE POP_JUMP_FORWARD_IF_NOT_NONE POP_JUMP_BACKWARD_IF_NOT_NONE")
def _on_pop_jump_if_none(m: Machine, f: Frame, i: Instruction) -> None:
    value = f.stack.pop()
    known = None if type(value) is v.Unknown else value is None
    _take(m, f, i, known, jumps_if="NOT_NONE" not in i.opname)


@_also("JUMP_IF_FALSE_OR_POP")
def _on_jump_if_true_or_pop(m: Machine, f: Frame, i: Instruction) -> None:
    known = m.known_truth(f.stack[-1])
    if not _take(m, f, i, known, jumps_if="TRUE" in i.opname):
        f.stack.pop()


# iterating


def _on_for_iter(m: Machine, f: Frame, i: Instruction) -> None:
    m.note_compared(f, v.compared(iteration.left_in(f.stack[-1]), (0,), False))
    try:
        f.stack.append(iteration.advance(m, f.stack[-1]))
        m.read_at.pop(id(f.stack[-1]), None)  # it has another name now
    except v.Exhausted:
        end_loop(f)


def end_loop(f: Frame) -> None:
    """Leave a ``for`` loop whose iterator has no more elements."""
    f.stack.pop() if _OLD else f.stack.append(v.NULL)  # END_FOR takes the filler away
    f.index = f.instruction.jump - 1


def _on_send(m: Machine, f: Frame, i: Instruction) -> None:
    value = f.stack.pop()
    try:
        f.stack.append(iteration.send(m, f.stack[-1], value))
    except v.Exhausted as over:
        end_send(f, over.value)


def end_send(f: Frame, value: Any) -> None:
    """Go on with what a generator or coroutine returned that was waited for."""
    if _OLD:
        f.stack.pop()
    f.stack.append(value)
    f.index = f.instruction.jump - 1


def _on_end_send(m: Machine, f: Frame, i: Instruction) -> None:
    del f.stack[-2]


def _on_get_awaitable(m: Machine, f: Frame, i: Instruction) -> None:
    value = f.stack[-1]
    if type(value) is v.Unknown:
        v.lost(f"await of {value.why}")
    if not is_a(value, v.Suspended, v.Elements, types.CoroutineType):
        f.stack[-1] = m.method(value, "__await__")


def _on_end_async_for(m: Machine, f: Frame, i: Instruction) -> None:
    value = f.stack.pop()
    if m.is_instance(value, StopAsyncIteration) is not True:
        raise v.Raised(value)
    f.pop(-i.effect - 1)


def _on_return_generator(m: Machine, f: Frame, i: Instruction) -> tuple[str, Any]:
    f.suspended = v.Suspended(f)
    return "return", f.suspended


# with, try


@_also("BEFORE_ASYNC_WITH")
def _on_before_with(m: Machine, f: Frame, i: Instruction) -> None:
    manager = f.stack.pop()
    prefix = "a" if "ASYNC" in i.opname else ""
    leave = m.attribute(manager, f"__{prefix}exit__")
    f.stack += [leave, m.method(manager, f"__{prefix}enter__")]


def _on_load_special(m: Machine, f: Frame, i: Instruction) -> None:
    names = ("__enter__", "__exit__", "__aenter__", "__aexit__")
    f.stack += [m.attribute(f.stack.pop(), names[i.arg]), v.NULL]


def _on_with_except_start(m: Machine, f: Frame, i: Instruction) -> None:
    value = f.stack[-1]
    leave = f.stack[-4] if sys.version_info < (3, 14) else f.stack[-5]
    found = m.call(leave, (v.kind_of(value), value, None), {})
    f.stack.append(False if type(found) is v.Unknown else m.truth(found))


def _on_push_exc_info(m: Machine, f: Frame, i: Instruction) -> None:
    value = f.stack.pop()
    f.stack += [None, value]
    f.handled.append(value)


def _on_pop_except(m: Machine, f: Frame, i: Instruction) -> None:
    f.stack.pop()
    if f.handled:
        f.handled.pop()


def _on_reraise(m: Machine, f: Frame, i: Instruction) -> None:
    raise v.Raised(f.stack.pop())


def _on_raise_varargs(m: Machine, f: Frame, i: Instruction) -> None:
    given = f.pop(i.arg)
    value = given[0] if given else f.handled[-1] if f.handled else v.lost("raise")
    raise v.Raised(m.call(value, (), {}) if is_a(value, type) else value)


# the rest


def _on_import_name(m: Machine, f: Frame, i: Instruction) -> None:
    level, names = f.pop(2)
    module = sys.modules.get(i.name) if level == 0 else None
    if module is None:
        v.lost(f"import of {i.name}")
    f.stack.append(module if names else sys.modules[i.name.partition(".")[0]])


def _on_match_class(m: Machine, f: Frame, i: Instruction) -> None:
    value, kind, names = f.pop(3)
    found = m.is_instance(value, kind)
    if not (m.decide() if type(found) is v.Unknown else found):
        f.stack.append(None)
        return
    own = (int, float, str, bool, list, tuple, dict, set, bytes)
    is_itself = any(kind is each for each in own)
    first = (None,) if is_itself else m.attribute(kind, "__match_args__", ())[: i.arg]
    asked = (*(first if i.arg else ()), *names)
    f.stack.append(tuple(value if each is None else m.attribute(value, each) for each in asked))


def _on_match_keys(m: Machine, f: Frame, i: Instruction) -> None:
    keys, space = f.stack[-1], m.overlay.view(f.stack[-2])
    found = all(key in space for key in keys)
    f.stack.append(tuple(space[key] for key in keys) if found else None)


for _name, _rule in [*globals().items()]:
    if _name.startswith("_on_"):
        RULES[_name.removeprefix("_on_").upper()] = _rule
RULES.update(
    {
        "PUSH_NULL": lambda m, f, i: f.stack.append(v.NULL),
        "COPY": lambda m, f, i: f.stack.append(f.stack[-i.arg]),
        "LOAD_CONST": lambda m, f, i: f.stack.append(i.constant),
        "LOAD_SMALL_INT": lambda m, f, i: f.stack.append(i.constant),
        "STORE_DEREF": lambda m, f, i: m.overlay.set_cell(f.variables[i.slot], f.stack.pop()),
        "DELETE_DEREF": lambda m, f, i: m.overlay.set_cell(f.variables[i.slot], v.NULL),
        "STORE_ATTR": lambda m, f, i: m.set_attribute(f.stack.pop(), i.name, f.stack.pop()),
        "DELETE_ATTR": lambda m, f, i: m.set_attribute(f.stack.pop(), i.name, MISSING),
        "BUILD_TUPLE": lambda m, f, i: f.stack.append(tuple(f.pop(i.arg))),
        "BUILD_LIST": lambda m, f, i: f.stack.append(v.OwnList(f.pop(i.arg))),
        "BUILD_SET": lambda m, f, i: f.stack.append(v.OwnSet(map(v.key_of, f.pop(i.arg)))),
        "BUILD_SLICE": lambda m, f, i: f.stack.append(slice(*f.pop(i.arg))),
        "LIST_TO_TUPLE": lambda m, f, i: f.stack.append(tuple(f.stack.pop())),
        "GET_ITER": lambda m, f, i: f.stack.append(iteration.iterator(m, f.stack.pop())),
        "GET_YIELD_FROM_ITER": lambda m, f, i: f.stack.append(iteration.iterator(m, f.stack.pop())),
        "GET_AITER": lambda m, f, i: f.stack.append(m.method(f.stack.pop(), "__aiter__")),
        "GET_ANEXT": lambda m, f, i: f.stack.append(m.method(f.stack[-1], "__anext__")),
        "RETURN_VALUE": lambda m, f, i: ("return", f.stack.pop()),
        "RETURN_CONST": lambda m, f, i: ("return", i.constant),
        "YIELD_VALUE": lambda m, f, i: ("yield", f.stack.pop()),
        "ASYNC_GEN_WRAP": lambda m, f, i: f.stack.append(v.Wrapped(f.stack.pop())),
        "CHECK_EXC_MATCH": lambda m, f, i: f.stack.append(
            m.is_instance(f.stack[-2], f.stack.pop())
        ),
        "MATCH_SEQUENCE": lambda m, f, i: f.stack.append(
            any(derives(v.kind_of(f.stack[-1]), each) for each in (list, tuple))
        ),
        "MATCH_MAPPING": lambda m, f, i: f.stack.append(derives(v.kind_of(f.stack[-1]), dict)),
        "BUILD_CONST_KEY_MAP": lambda m, f, i: f.stack.append(
            v.OwnDict(zip(f.stack.pop(), f.pop(i.arg), strict=True))
        ),
        "UNPACK_SEQUENCE": lambda m, f, i: f.stack.extend(
            reversed(iteration.unpack(m, f.stack.pop(), i.arg))
        ),
        "LOAD_COMMON_CONSTANT": lambda m, f, i: f.stack.append(_COMMON[i.arg]),
        "LOAD_ASSERTION_ERROR": lambda m, f, i: f.stack.append(AssertionError),
        "IMPORT_FROM": lambda m, f, i: f.stack.append(m.attribute(f.stack[-1], i.name)),
        "GET_LEN": lambda m, f, i: f.stack.append(m.call(len, (f.stack[-1],), {})),
    }
)

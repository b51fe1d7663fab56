"""Lists what each instruction of Python 3.11 to 3.14 does: all that differs by version."""

from __future__ import annotations

import dis
import sys
from enum import IntEnum
from typing import Final

Action = IntEnum(
    "Action",
    "KEEP POP FRESH PART OPERATE BINARY SUBSCRIPT SLICE CONSTANT NULL LOAD LOAD_PAIR "
    "LOAD_AND_CLEAR STORE STORE_PAIR STORE_LOAD DELETE ATTRIBUTE SUPER STORE_ATTRIBUTE "
    "DELETE_ATTRIBUTE STORE_SUBSCRIPT STORE_SLICE DELETE_SUBSCRIPT COPY SWAP BUILD ADD_TO "
    "UNPACK NEXT FUNCTION FUNCTION_ATTRIBUTE CALL CALL_KW CALL_EX ENTER ENTER_SPECIAL SEND "
    "YIELD RETURN RETURN_CONSTANT RETURN_GENERATOR",
)
"""What an instruction does with values; the machine has one rule for each member.

KEEP touches no value; POP drops as many as its stack effect; FRESH pushes what no tracked value is
part of (a bool, a string, a cell); PART pushes what is made of what it pops (a container, an
element, an iterator); OPERATE computes, so what it pushes is built on what it pops; ADD_TO adds
what it pops to a container deeper in the stack.
"""


_NAMES: Final = {
    Action.KEEP: "NOP CACHE RESUME PRECALL KW_NAMES MAKE_CELL COPY_FREE_VARS NOT_TAKEN "
    "SETUP_ANNOTATIONS JUMP_FORWARD JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT JUMP_BACKWARD_QUICK "
    "EXTENDED_ARG",
    Action.POP: "POP_TOP POP_ITER END_FOR POP_EXCEPT PRINT_EXPR IMPORT_STAR RAISE_VARARGS RERAISE "
    "END_ASYNC_FOR POP_JUMP_IF_TRUE POP_JUMP_IF_FALSE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE "
    "POP_JUMP_FORWARD_IF_TRUE POP_JUMP_FORWARD_IF_FALSE POP_JUMP_FORWARD_IF_NONE "
    "POP_JUMP_FORWARD_IF_NOT_NONE POP_JUMP_BACKWARD_IF_TRUE POP_JUMP_BACKWARD_IF_FALSE "
    "POP_JUMP_BACKWARD_IF_NONE POP_JUMP_BACKWARD_IF_NOT_NONE JUMP_IF_TRUE_OR_POP "
    "JUMP_IF_FALSE_OR_POP",
    Action.FRESH: "COMPARE_OP IS_OP CONTAINS_OP UNARY_NOT TO_BOOL FORMAT_VALUE FORMAT_SIMPLE "
    "FORMAT_WITH_SPEC CONVERT_VALUE BUILD_STRING BUILD_INTERPOLATION BUILD_TEMPLATE GET_LEN "
    "MATCH_MAPPING MATCH_SEQUENCE CHECK_EXC_MATCH CHECK_EG_MATCH PUSH_EXC_INFO WITH_EXCEPT_START "
    "LOAD_BUILD_CLASS LOAD_ASSERTION_ERROR LOAD_COMMON_CONSTANT LOAD_LOCALS IMPORT_NAME "
    "IMPORT_FROM PREP_RERAISE_STAR CLEANUP_THROW GET_AITER GET_ANEXT LOAD_CLOSURE",
    Action.PART: "GET_ITER GET_YIELD_FROM_ITER GET_AWAITABLE "
    "LIST_TO_TUPLE MATCH_KEYS MATCH_CLASS ASYNC_GEN_WRAP CALL_INTRINSIC_1 CALL_INTRINSIC_2 "
    "END_SEND",
    Action.OPERATE: "UNARY_NEGATIVE UNARY_INVERT UNARY_POSITIVE",
    Action.BINARY: "BINARY_OP",
    Action.SUBSCRIPT: "BINARY_SUBSCR",
    Action.SLICE: "BINARY_SLICE BUILD_SLICE",
    Action.CONSTANT: "LOAD_CONST LOAD_SMALL_INT LOAD_CONST_IMMORTAL",
    Action.NULL: "PUSH_NULL",
    Action.LOAD: "LOAD_FAST LOAD_FAST_CHECK LOAD_FAST_BORROW LOAD_NAME LOAD_GLOBAL LOAD_DEREF "
    "LOAD_CLASSDEREF LOAD_FROM_DICT_OR_DEREF LOAD_FROM_DICT_OR_GLOBALS",
    Action.LOAD_PAIR: "LOAD_FAST_LOAD_FAST LOAD_FAST_BORROW_LOAD_FAST_BORROW",
    Action.LOAD_AND_CLEAR: "LOAD_FAST_AND_CLEAR",
    Action.STORE: "STORE_FAST STORE_NAME STORE_GLOBAL STORE_DEREF STORE_FAST_MAYBE_NULL",
    Action.STORE_PAIR: "STORE_FAST_STORE_FAST",
    Action.STORE_LOAD: "STORE_FAST_LOAD_FAST",
    Action.DELETE: "DELETE_FAST DELETE_NAME DELETE_GLOBAL DELETE_DEREF",
    Action.ATTRIBUTE: "LOAD_ATTR LOAD_METHOD",
    Action.SUPER: "LOAD_SUPER_ATTR",
    Action.STORE_ATTRIBUTE: "STORE_ATTR",
    Action.DELETE_ATTRIBUTE: "DELETE_ATTR",
    Action.STORE_SUBSCRIPT: "STORE_SUBSCR",
    Action.STORE_SLICE: "STORE_SLICE",
    Action.DELETE_SUBSCRIPT: "DELETE_SUBSCR",
    Action.COPY: "COPY",
    Action.SWAP: "SWAP",
    Action.BUILD: "BUILD_TUPLE BUILD_LIST BUILD_SET BUILD_MAP BUILD_CONST_KEY_MAP",
    Action.ADD_TO: "LIST_APPEND LIST_EXTEND SET_ADD SET_UPDATE MAP_ADD DICT_UPDATE DICT_MERGE",
    Action.UNPACK: "UNPACK_SEQUENCE UNPACK_EX",
    Action.NEXT: "FOR_ITER",
    Action.FUNCTION: "MAKE_FUNCTION",
    Action.FUNCTION_ATTRIBUTE: "SET_FUNCTION_ATTRIBUTE",
    Action.CALL: "CALL",
    Action.CALL_KW: "CALL_KW",
    Action.CALL_EX: "CALL_FUNCTION_EX",
    Action.ENTER: "BEFORE_WITH BEFORE_ASYNC_WITH",
    Action.ENTER_SPECIAL: "LOAD_SPECIAL",
    Action.SEND: "SEND",
    Action.YIELD: "YIELD_VALUE",
    Action.RETURN: "RETURN_VALUE",
    Action.RETURN_CONSTANT: "RETURN_CONST",
    Action.RETURN_GENERATOR: "RETURN_GENERATOR",
}

ACTIONS: Final = {name: action for action, names in _NAMES.items() for name in names.split()}
"""Instruction name to action. An unknown one (of a later Python) is PART: it keeps what it met."""

_OTHER_WAYS_BACK: Final = ("JUMP_BACKWARD_NO_INTERRUPT", "JUMP_BACKWARD_QUICK")
ENDS_FLOW: Final = frozenset(
    (
        "RETURN_VALUE",
        "RETURN_CONST",
        "RAISE_VARARGS",
        "RERAISE",
        "JUMP_FORWARD",
        "JUMP_BACKWARD",
        *_OTHER_WAYS_BACK,
    )
)
"""Instructions after which the next one in the code is not run."""

LOOPS_BACK: Final = "BACKWARD"
"""In the name of every jump back; with ``NO_INTERRUPT`` it only waits: await, yield from."""

EXTENDED_ARG: Final = dis.opmap["EXTENDED_ARG"]
CACHE: Final = 0
"""Inline caches show as this opcode in ``co_code``, in every version."""

# BINARY_OP's argument: 13 to 25 are the in-place operators; 26 is the subscript, from 3.14 on.
FIRST_IN_PLACE: Final = 13
SUBSCRIPT_OPERATOR: Final = 26

_METHOD_IS_ATTRIBUTE: Final = dis.opmap.get("LOAD_METHOD", 256) > 255
"""From 3.12 on LOAD_ATTR loads methods too; a number above 255 is never in the code."""

_FLAG_BITS: Final = {"LOAD_GLOBAL": 1, "LOAD_SUPER_ATTR": 2} | (
    {"LOAD_ATTR": 1} if _METHOD_IS_ATTRIBUTE else {}
)
"""How many low bits of a name's index are flags; the lowest one: a NULL (or self) is pushed too."""


NULL_FIRST: Final = sys.version_info < (3, 13)
"""Whether ``LOAD_GLOBAL`` pushes its NULL before the value, so that a ``LOAD_ATTR`` may follow."""


def pushes_null(opname: str, arg: int) -> bool:
    """Return whether this load also pushes the NULL (or self) that the call convention wants."""
    return opname == "LOAD_METHOD" or (opname in _FLAG_BITS and bool(arg & 1))


def name_index(opname: str, arg: int) -> int:
    """Return the index into ``co_names`` that the argument holds."""
    return arg >> _FLAG_BITS.get(opname, 0)


def stack_effect(opcode: int, opname: str, arg: int, *, jump: bool) -> int:
    """Return by how much the stack grows, as Python itself counts it where it can."""
    if (
        opname == "PRECALL"
    ):  # 3.11 splits the effect of a call over two instructions; all of it is given to CALL here
        return 0
    if opname == "CALL":
        return -1 - arg
    try:
        return dis.stack_effect(opcode, arg if opcode >= dis.HAVE_ARGUMENT else None, jump=jump)
    except ValueError:
        return 0

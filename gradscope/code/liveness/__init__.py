"""Reads ahead in the bytecode: which names are read again, where, and to what end."""

from gradscope.code.liveness.callees import Callee, Resolve
from gradscope.code.liveness.calls import (
    Call,
    assignment_sites,
    call_at,
    calls_after,
    instruction_at,
    site_of,
)
from gradscope.code.liveness.flow import MISSING, forget_flows
from gradscope.code.liveness.forecast import Forecaster, let_go, ways_after
from gradscope.code.liveness.known import Facts, Opaque, is_plain
from gradscope.code.liveness.loops import Loops, iterators_at, loops_at
from gradscope.code.liveness.notes import Effect, Notes
from gradscope.code.liveness.parts import ANYWHERE
from gradscope.code.liveness.reads import RESULT, Read, all_reads, left_after, read_of
from gradscope.code.liveness.ways import Coming, Condition, Exploration, Returned
from gradscope.code.liveness.words import CallKind

__all__ = [
    "ANYWHERE",
    "MISSING",
    "RESULT",
    "Call",
    "CallKind",
    "Callee",
    "Coming",
    "Condition",
    "Effect",
    "Exploration",
    "Facts",
    "Forecaster",
    "Loops",
    "Notes",
    "Opaque",
    "Read",
    "Resolve",
    "Returned",
    "all_reads",
    "assignment_sites",
    "call_at",
    "calls_after",
    "forget_flows",
    "instruction_at",
    "is_plain",
    "iterators_at",
    "left_after",
    "let_go",
    "loops_at",
    "read_of",
    "site_of",
    "ways_after",
]

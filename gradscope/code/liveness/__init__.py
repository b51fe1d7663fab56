"""Reads ahead in the bytecode: which names are read again, where, and to what end."""

from gradscope.code.liveness.callees import Callee, Resolve
from gradscope.code.liveness.calls import Call, assignment_sites, call_at, calls_after
from gradscope.code.liveness.leaving import left_after
from gradscope.code.liveness.notes import Effect
from gradscope.code.liveness.reads import RESULT, Loops, Read, all_reads, iterators_at

__all__ = [
    "RESULT",
    "Call",
    "Callee",
    "Effect",
    "Loops",
    "Read",
    "Resolve",
    "all_reads",
    "assignment_sites",
    "call_at",
    "calls_after",
    "iterators_at",
    "left_after",
]

"""Reads ahead in the bytecode: which names are read again, where, and to what end."""

from gradscope.code.liveness.callees import Callee, Resolve
from gradscope.code.liveness.calls import Call, assignment_sites, call_at, calls_after
from gradscope.code.liveness.leaving import left_after
from gradscope.code.liveness.notes import Effect
from gradscope.code.liveness.reads import RESULT, Read, all_reads

__all__ = [
    "RESULT",
    "Call",
    "Callee",
    "Effect",
    "Read",
    "Resolve",
    "all_reads",
    "assignment_sites",
    "call_at",
    "calls_after",
    "left_after",
]

"""Says what the code will read next: which names are read again from an instruction on, where, and to what end."""

from gradscope.code.liveness.callees import Callee, Resolve
from gradscope.code.liveness.loops import (
    LoopSpan,
    assigned_in,
    assignment_sites,
    enclosing_loop,
    enclosing_loops,
    is_rebound_each_iteration,
)
from gradscope.code.liveness.reads import (
    RESULT,
    Call,
    Effect,
    Read,
    all_reads,
    attribute_reads,
    call_at,
    calls_after,
    method_reads,
    next_reads,
)

__all__ = [
    "RESULT",
    "Call",
    "Callee",
    "Effect",
    "LoopSpan",
    "Read",
    "Resolve",
    "all_reads",
    "assigned_in",
    "assignment_sites",
    "attribute_reads",
    "call_at",
    "calls_after",
    "enclosing_loop",
    "enclosing_loops",
    "is_rebound_each_iteration",
    "method_reads",
    "next_reads",
]

"""Turns the edits of findings into a changed source: which apply, as a diff, tried out in a run, and written."""

from gradscope.fixing.proposals import Plan, Proposal, plan
from gradscope.fixing.verify import Bounds, Loss, Run, Verdict, default_calls, verify
from gradscope.fixing.write import write

__all__ = [
    "Bounds",
    "Loss",
    "Plan",
    "Proposal",
    "Run",
    "Verdict",
    "default_calls",
    "plan",
    "verify",
    "write",
]

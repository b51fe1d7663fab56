"""Orders the candidates of a finding, and words what each means for the training."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from gradscope.code import source
from gradscope.model import Fix, FixKind, Site
from gradscope.rules.gs102 import SharedGraph
from gradscope.rules.roles import Loss, Roles, grouped
from gradscope.units import counted

_MOST = 4
SAME_GRADIENTS = "every parameter gets the gradient that it has now"
"""The effect of a fix that changes no gradient."""
_RUNS_ANYWAY = (FixKind.SUM_LOSSES, FixKind.RETAIN_GRAPH)


def chosen(candidates: Iterable[Fix]) -> tuple[Fix, ...]:
    """Return the best of the candidates in their order, none twice.

    Of what comes after the first, nothing without an edit stands before something with one.
    """
    found: list[Fix] = []
    for each in candidates:
        same = (f for f in found if (f.kind, f.message) == (each.kind, each.message))
        alike = (f for f in found if each.edits and f.edits == each.edits)
        if next(same, None) is None and next(alike, None) is None:
            found.append(each)
    return tuple(found[:_MOST])


def loses(leaves: str, loss: Loss | None, how: str = "") -> str:
    """Return that parameters get no gradient from a loss any more."""
    source_of = loss.words if loss is not None else "this loss"
    through = f" {how}" if how else ""
    return (
        f"{leaves or 'what it was computed from'} would get no gradient from {source_of}{through}"
    )


def computed_again(facts: SharedGraph, how: str) -> str:
    """Return what would be computed again: the shared part's share of the graph, in nodes."""
    part, whole = facts.share
    if not part or part > whole:
        return f"the shared part is computed {how}"
    share = f"{100 * part / whole:.0f} %" if part < whole else "all"
    nodes = f"{part} of the {counted(whole, 'node')} of this call's graph ({share})"
    return f"the shared part is computed {how}: {nodes}"


def untouched(roles: Roles) -> str:
    """Return that all parameters get gradient from both losses, as before."""
    who = grouped(roles.leaves)
    return f"{who} would get gradient from both losses as before" if who else "trains as before"


def added(site: Site, total: str) -> str:
    """Return the variable that the statement at a site adds to a total; empty for all else."""
    statement = source.statement_at(site)
    value: ast.expr | None = None
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        value = statement.value
    elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.BinOp):
        is_sum = isinstance(statement.value.op, ast.Add)
        value = _other(total, statement.value) if is_sum else None
    return value.id if isinstance(value, ast.Name) else ""


def _other(total: str, sum_of: ast.BinOp) -> ast.expr | None:
    """Return what a sum of two adds to a total; None unless exactly one of them is the total."""
    left, right = ast.unparse(sum_of.left), ast.unparse(sum_of.right)
    if total not in (left, right) or left == right:
        return None
    return sum_of.right if left == total else sum_of.left

"""Reads in the source what a loss compares with: its target."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradscope.code import source

_AS_TARGET = ("loss", "crit", "mse", "bce", "ce", "l1", "huber", "kl", "kl_div", "nll", "xent")
"""What a function whose second argument is a target is called, or a part of its name."""


def targets_in(statement: ast.AST) -> Iterator[ast.expr]:
    """Yield what a statement compares with: the targets of loss functions, divisors of ratios."""
    for node in ast.walk(statement):
        match node:
            case ast.Call(args=[_, second, *_]) if _computes_loss(node):
                yield second
            case ast.Call(keywords=given):
                yield from (k.value for k in given if k.arg in ("target", "targets", "labels"))
            case ast.BinOp(op=ast.Sub(), right=right) if _is_ratio(node, statement):
                yield right


def _computes_loss(call: ast.Call) -> bool:
    name = source.called_name(call).lower()
    parts = name.split("_")
    return any(word in (name if len(word) > 3 else parts) for word in _AS_TARGET)


def _is_ratio(difference: ast.BinOp, statement: ast.AST) -> bool:
    """Return whether a difference is raised: ``(new - old).exp()``, ``torch.exp(new - old)``."""
    calls = [call for call in source.calls_in(statement) if source.called_name(call) == "exp"]
    inside = [e for c in calls for e in (*c.args, getattr(c.func, "value", c))]
    return any(node is difference for each in inside for node in ast.walk(each))

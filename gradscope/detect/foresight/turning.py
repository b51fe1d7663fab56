"""Finds when a branch that now saves the program will turn, as a counter of its loop goes on."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from types import FrameType
from typing import Any

from gradscope.code import source
from gradscope.code.liveness import MISSING, is_plain, site_of
from gradscope.collect.alarms import Alarm
from gradscope.detect.foresight.objects import MISSING as NOT_FOUND
from gradscope.detect.foresight.objects import Objects
from gradscope.program.standing import standing

_FARTHEST = 4_096
_KNOWN = (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Constant, ast.Name, ast.Attribute)
_PARTS = (*_KNOWN, ast.cmpop, ast.boolop, ast.unaryop, ast.operator, ast.expr_context)
_COSTLY = (ast.Pow, ast.LShift, ast.MatMult, ast.In, ast.NotIn)


def next_turn(decided: Iterable[tuple[FrameType, int]]) -> Alarm | None:
    """Return when the first of these branches, by frame and instruction, will turn."""
    alarms = [alarm for frame, at in dict.fromkeys(decided) if (alarm := _turn(frame, at))]
    return min(alarms, key=lambda alarm: alarm.at, default=None)


def _turn(frame: FrameType, at: int) -> Alarm | None:
    site = site_of(standing(frame).code, at)
    statement, loop = source.statement_at(site), source.loop_around(site)
    if not isinstance(statement, ast.If) or not isinstance(loop, ast.For):
        return None
    counters = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    names = {node.id for node in ast.walk(statement.test) if isinstance(node, ast.Name)}
    nodes = [*ast.walk(statement.test)]
    if len(names & counters) != 1 or not all(isinstance(node, _PARTS) for node in nodes):
        return None
    if any(isinstance(node, _COSTLY) for node in nodes):
        return None
    name = (names & counters).pop()
    objects = Objects(frame)
    value = objects.find(name)
    test = _filled(statement.test, name, objects)
    if type(value) is not int or test is None:
        return None
    try:
        holds = bool(eval(test, {"__builtins__": {}, name: value}))
        for later in range(value + 1, value + _FARTHEST):
            if bool(eval(test, {"__builtins__": {}, name: later})) != holds:
                return Alarm(frame.f_code, name, later)
    except (ArithmeticError, TypeError, ValueError):
        return None
    return None


def _filled(test: ast.expr, counter: str, objects: Objects) -> Any:
    """Return a test, compiled, with plain values in the place of all names but the counter."""

    class Fill(ast.NodeTransformer):
        known = True

        def visit_Name(self, node: ast.Name) -> ast.expr:
            return node if node.id == counter else self.value(node)

        def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
            return self.value(node)

        def value(self, node: ast.expr) -> ast.expr:
            found = objects.find(ast.unparse(node))
            if found is NOT_FOUND or found is MISSING or not is_plain(found):
                self.known = False
                return node
            return ast.copy_location(ast.Constant(found), node)

    fill = Fill()
    filled = fill.visit(ast.parse(ast.unparse(test), mode="eval"))
    return compile(ast.fix_missing_locations(filled), "<test>", "eval") if fill.known else None

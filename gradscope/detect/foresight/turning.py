"""Finds the iteration in which a branch that keeps a call from harm will go the other way."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from types import CodeType, FrameType

from gradscope.code import source
from gradscope.code.bytecode import site_at
from gradscope.collect.alarms import Alarm
from gradscope.detect.foresight.objects import Objects
from gradscope.program.ahead.values import is_plain
from gradscope.program.standing import standing

_FARTHEST = 4_096
_KNOWN = (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Constant, ast.Name, ast.Attribute)
_COSTLY = (ast.Pow, ast.LShift, ast.MatMult, ast.In, ast.NotIn)


def next_turn(decided: Iterable[tuple[FrameType, int]]) -> Alarm | None:
    """Return when the first of these branches, by frame and instruction, will turn."""
    alarms = [alarm for frame, at in dict.fromkeys(decided) if (alarm := _turn(frame, at))]
    return min(alarms, key=lambda alarm: alarm.at, default=None)


def _turn(frame: FrameType, at: int) -> Alarm | None:
    site = site_at(standing(frame).code, at)
    statement, loop = source.statement_at(site), source.loop_around(site)
    if not isinstance(statement, ast.If) or not isinstance(loop, ast.For):
        return None
    if all(map(_only_prints, (*statement.body, *statement.orelse))):
        return None
    counters = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    names = {node.id for node in ast.walk(statement.test) if isinstance(node, ast.Name)}
    nodes = [*ast.walk(statement.test)]
    is_known = all(isinstance(n, _KNOWN) for n in nodes if isinstance(n, ast.expr))
    if len(names & counters) != 1 or not is_known or any(isinstance(n, _COSTLY) for n in nodes):
        return None
    name = (names & counters).pop()
    objects = Objects(frame)
    value = objects.find(name)
    test = _compiled(ast.unparse(statement.test))
    read = {text: objects.find(text) for text in test.co_names if text != name}
    if type(value) is not int or not all(map(is_plain, read.values())):
        return None
    try:
        holds = bool(eval(test, {"__builtins__": {}, **read, name: value}))
        for later in range(value + 1, value + _FARTHEST):
            if bool(eval(test, {"__builtins__": {}, **read, name: later})) != holds:
                return Alarm(frame.f_code, name, later)
    except (ArithmeticError, TypeError, ValueError):
        return None
    return None


def _only_prints(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and source.called_name(call) == "print"


def _compiled(test: str) -> CodeType:
    """Return a test, compiled, that reads ``self.every`` as a variable of that name."""

    class Reads(ast.NodeTransformer):
        def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
            return ast.copy_location(ast.Name(ast.unparse(node), ast.Load()), node)

    return compile(Reads().visit(ast.parse(test, mode="eval")), "<test>", "eval")

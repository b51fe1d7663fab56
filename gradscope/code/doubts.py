"""Finds what makes a prediction a guess: stores under a condition, a call that may be the last."""

from __future__ import annotations

import ast

from gradscope.code import changes, source
from gradscope.code.names import is_part
from gradscope.model import Site

_HANDS_ON = frozenset({"zip", "enumerate", "reversed", "list", "tuple", "iter", "items", "values"})


def stored_sometimes(
    region: ast.AST, name: str, line: int, read: int, *, after: bool = False, until: int = 0
) -> bool:
    """Return whether the region rebinds or resets the name under a condition that may hold, or in a
    loop that may not run.

    The code then does not show whether the name still holds the same thing when line ``read`` is
    reached. The branch that ``line`` is in does not count, nor does what begins after line
    ``until``; with ``after``, nor what comes before ``line``. ``if h is None`` does not hold, as
    the name has something; a condition that comes and goes with the iterations does not save a
    program that calls backward in each.
    """
    always = isinstance(region, source.LOOPS) and not any(
        isinstance(s, ast.If) and source.spans(s, line) for s in source.statements_of(region)
    )
    assigned = _assigned_in(region) if always else set()
    for statement in source.statements_of(region):
        first, last = statement.lineno, statement.end_lineno or 0
        if source.spans(statement, line) or (after and last < line) or (until and first > until):
            continue
        parts: list[ast.stmt] = []
        if isinstance(statement, ast.If):
            if not (always and _comes_and_goes(statement.test, assigned)):
                absent = _is_of_absence(statement.test, name)
                parts = statement.orelse if absent else [*statement.body, *statement.orelse]
        elif isinstance(statement, source.LOOPS) and not source.spans(statement, read):
            parts = statement.body
        with_owner = isinstance(statement, ast.If)
        for part in parts:
            if any(_resets(s, name, with_owner) for s in (part, *source.statements_of(part))):
                return True
    return False


def _assigned_in(region: ast.AST) -> set[str]:
    statements = (region, *source.statements_of(region))
    return {target for s in statements for target in changes.targets_of(s)}


def _resets(statement: ast.stmt, name: str, with_owner: bool) -> bool:
    """Return whether a statement stores or changes what the name holds, or may its owner."""
    if changes.stores(statement, name):
        return True
    owner = name.rpartition(".")[0]
    if with_owner and owner and _may_reset(statement, owner):
        return True
    for call in source.calls_in(statement):
        method = source.called_name(call)
        changes_it = method == "clear" or changes.is_in_place(method)
        if isinstance(call.func, ast.Attribute) and changes_it:
            receiver = ast.unparse(call.func.value)
            if receiver == name or is_part(name, receiver):
                return True
    return False


def _may_reset(statement: ast.stmt, owner: str) -> bool:
    """Return whether a call may change the owner: ``net.reset()``, ``reset(net)``."""
    for call in source.calls_in(statement):
        if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == owner:
            return True
        if any(ast.unparse(argument) == owner for argument in call.args):
            return True
    return False


def _is_of_absence(test: ast.expr, name: str) -> bool:
    """Return whether a name with a value makes a test false: ``h is None``, ``k not in h``."""
    last = name.rpartition(".")[2].partition("[")[0]
    if last not in source.words_of(test):
        return False
    if isinstance(test, ast.UnaryOp):
        return isinstance(test.op, ast.Not)  # not hasattr(self, "h")
    operator = _only_operator(test)
    return isinstance(operator, ast.Is | ast.NotIn)


def _only_operator(test: ast.expr) -> ast.cmpop | None:
    return test.ops[0] if isinstance(test, ast.Compare) and len(test.ops) == 1 else None


def _names_in(test: ast.expr) -> set[str]:
    return {n.id for n in ast.walk(test) if isinstance(n, ast.Name)}


def _comes_and_goes(test: ast.expr, assigned: set[str]) -> bool:
    """Return whether a test of what the loop changes holds now and then: ``i % 50 == 0``."""
    operator = _only_operator(test)
    if operator is None or not assigned & _names_in(test):
        return False
    assert isinstance(test, ast.Compare)
    is_bound = isinstance(test.comparators[0], ast.Constant)
    return isinstance(operator, ast.Eq) or (isinstance(operator, ast.Gt | ast.GtE) and not is_bound)


def may_be_the_last(site: Site) -> bool:
    """Return whether a condition around a call, in its loop, may be one that holds in the last
    iteration only.

    ``i % 4 == 3`` holds again, ``i == last`` does not; a name that the loop never assigns is a
    setting.
    """
    loop = source.loop_around(site)
    if loop is None:
        return False
    assigned = _assigned_in(loop)
    for node in source.enclosing(site.file, site.line):
        if not isinstance(node, ast.If) or node.lineno <= loop.lineno:
            continue
        other = node.orelse if any(source.spans(s, site.line) for s in node.body) else node.body
        given = (k.arg for s in other for call in source.calls_in(s) for k in call.keywords)
        if "retain_graph" in given:
            return True
        test = node.test
        if any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod) for n in ast.walk(test)):
            continue
        if _names_in(test) & assigned and not _is_about_the_first(test):
            return True
    return False


def _is_about_the_first(test: ast.expr) -> bool:
    """Return whether a test is ``i > 0``, ``x is not None`` or ``i != 0``."""
    if not isinstance(_only_operator(test), ast.Gt | ast.NotEq | ast.IsNot):
        return False
    assert isinstance(test, ast.Compare)
    bound = test.comparators[0]
    return isinstance(bound, ast.Constant) and bound.value in (0, None)


def runs_over_parts(loop: ast.For) -> bool:
    """Return whether a loop runs over the parts of what it names: not over ``[sum(losses)]``."""
    if isinstance(loop.iter, ast.List | ast.Tuple) and len(loop.iter.elts) < 2:
        return False
    return all(source.called_name(call) in _HANDS_ON for call in source.calls_in(loop.iter))

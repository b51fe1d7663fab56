"""Says whether a function that a library runs again reads an attribute before it stores it."""

from __future__ import annotations

import ast

from gradscope.code import source
from gradscope.model import Site


def is_read_first(link: Site, holder: str) -> bool:
    """Return whether the store at a site may put something else in place for the next run: this
    run does not read the attribute any more.
    """
    store = source.statement_at(link)
    if not isinstance(store, ast.Assign) or not isinstance(store.value, ast.Name):
        return False
    attribute = holder.rpartition(".")[2]
    reads = (
        node
        for node in ast.walk(source.tree(link.file))
        if isinstance(node, ast.Attribute) and node.attr == attribute
    )
    return all(
        not isinstance(node.ctx, ast.Load) or _comes_first(node, store, link) for node in reads
    )


def _comes_first(node: ast.expr, store: ast.stmt, link: Site) -> bool:
    """Return whether a read stands before the store in its function."""
    around = source.function_around(link)
    return source.spans(around, node.lineno) and node.lineno < store.lineno

"""Makes the Site of an instruction or of a syntax node; all columns count characters."""

from __future__ import annotations

import ast
import linecache
import os
import re
import sys
from itertools import islice
from types import CodeType
from typing import Any, TypeAlias

from gradscope.model import Site


def cell_of(file: str) -> str:
    """Return ``In[11]`` for the code that the notebook last ran under that number, else nothing."""
    compiler = getattr(shell_of_ipython(), "compile", None)
    name = getattr(compiler, "format_code_name", None)  # an older IPython has none
    named = None if name is None else name(file)
    return str(named[1]) if named else ""


def shell_of_ipython() -> Any:
    """Return the shell of IPython that runs the program; None outside of one."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", None)  # it may be half imported
    return None if shell is None else shell()


Located: TypeAlias = ast.stmt | ast.expr
"""The nodes of the syntax tree that have a place."""

_RESUMED = re.compile(r"torch_dynamo_resume_in_(\w+)_at_\d+")
"""How torch.compile names the rest of a function, after a part that it could not compile."""


def of_instruction(code: CodeType, offset: int) -> Site:
    """Return the place of an instruction, with columns where the code has them (PEP 657)."""
    line = end_line = column = end_column = None
    if offset >= 0:
        positions = islice(code.co_positions(), offset // 2, None)
        line, end_line, column, end_column = next(positions, (None,) * 4)
    line = line or code.co_firstlineno
    function = _RESUMED.sub(r"\1", code.co_qualname)
    return _site(code.co_filename, function, line, column or 0, end_line or line, end_column)


def of_node(node: Located, file: str, function: str = "<module>") -> Site:
    """Return the place of a node; ``function`` is the ``co_qualname`` of the code it belongs to."""
    end_line = node.end_lineno or node.lineno
    return _site(file, function, node.lineno, node.col_offset, end_line, node.end_col_offset)


def is_at(node: ast.AST, site: Site) -> bool:
    """Return whether a node begins where the site does, and ends there if the site ends."""
    if not isinstance(node, Located) or node.lineno != site.line:
        return False
    own = of_node(node, site.file)
    ends = (own.end_line, own.end_column) == (site.end_line, site.end_column)
    return own.column == site.column and (ends or not site.end_column)


def character(file: str, line: int, column: int) -> int:
    """Return the character at a column that counts bytes of UTF-8, as Python's own columns do."""
    text = linecache.getline(file, line)
    return column if text.isascii() else len(text.encode()[:column].decode(errors="ignore"))


def _site(
    path: str, function: str, line: int, column: int, end_line: int, end_column: int | None
) -> Site:
    return Site(
        file=path if path.startswith("<") else os.path.abspath(path),
        line=line,
        column=character(path, line, column) + 1,
        end_line=end_line,
        end_column=0 if end_column is None else character(path, end_line, end_column) + 1,
        function=function,
        cell=cell_of(path),
    )

"""Marks every expression that a program reads, so that a run can say which place gave a tensor."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from gradscope.code import source
from gradscope.code.source import FUNCTIONS, LOOPS, Function, Loop

MARK = "__gradscope_mark__"
"""The builtin that a marked expression is handed to: ``MARK(number, begun, value)`` returns the
value. ``begun`` is what there was when its evaluation began, None where that builds nothing or
where other code may run meanwhile.
"""

BEGIN = "__gradscope_begin__"
"""The builtin that is asked for that: ``BEGIN()``."""

ADD = "__gradscope_add__"
"""The builtin that runs ``target += value``: ``ADD(number, operator, target, value)``."""

_LEFT = (
    *(ast.JoinedStr, ast.Global, ast.Nonlocal, ast.Import, ast.ImportFrom, ast.Constant),
    *(ast.Compare, ast.Delete, ast.pattern),
)
"""What stays as it is: names, texts, and what asks for an object's identity."""
_MARKED = (ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Name, ast.Attribute, ast.Subscript)
_PARTS = ast.Attribute | ast.Subscript
_OF_TENSOR = frozenset({"data", "grad", "requires_grad", "grad_fn", "_version", "is_leaf", "shape"})
_BY_OBJECT = frozenset({"retain_grad", "register_hook", "is_tensor", "id", "isinstance", "type"})
"""Calls that mean the object that they are handed, not its value."""
_STEPS: dict[type[ast.operator], str] = {
    ast.Add: "iadd",
    ast.Sub: "isub",
    ast.Mult: "imul",
    ast.Div: "itruediv",
}


RENEW = "__gradscope_renew__"
"""The builtin that is handed what an attribute or an item becomes that was read before, and whose:
``RENEW(value, owner)`` returns the value.
"""

HEAD = "__gradscope_head__"
"""The builtin that is called at the head of each function and loop: ``HEAD(number, paths)``. The
paths are the attributes of variables that it reads or sets; those of ``self``, that its class does.
"""


@dataclass(frozen=True, slots=True)
class Span:
    """An expression of the program; ``is_added`` marks the target of an ``x += y``.

    Lines count from 1, columns are indices of UTF-8 bytes from 0, as in ``ast``.
    """

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    is_added: bool = False

    @classmethod
    def of(cls, file: str, node: ast.expr | ast.stmt, *, is_added: bool = False) -> Span:
        """Return the place of a node in a file."""
        end_line, end = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return cls(file, node.lineno, node.col_offset, end_line, end, is_added)

    @classmethod
    def at(cls, file: str, line: int) -> Span:
        """Return a line of which no expression is known."""
        return cls(file, line, 0, line, 0)

    @property
    def expression(self) -> ast.expr | None:
        """The expression there."""
        span = self.line, self.column, self.end_line, self.end_column
        return source.parsed(self.file).expressions.get(span)

    @property
    def text(self) -> str:
        """The text of the expression; empty if there is none."""
        return "" if self.expression is None else ast.unparse(self.expression)

    @property
    def statement(self) -> tuple[str, ast.stmt]:
        """The file, and the statement around it."""
        return self.file, source.enclosing(self.file, self.line)[-1]

    @property
    def loop(self) -> Loop | None:
        """The innermost loop around it, in its function."""
        return next(iter(source.loops_around(self.file, self.line)), None)

    def is_in(self, file: str, node: ast.AST) -> bool:
        """Return whether it is within a node of a file."""
        return self.file == file and (isinstance(node, ast.Module) or source.spans(node, self.line))


class Instrumenter(ast.NodeTransformer):
    """Rewrites source files for a rehearsal, so that the run tells which expression gave which
    tensor.

    Each expression that is read becomes a call, and its value passes through:

        loss = net(x).mean()   →   loss = MARK(3, BEGIN(), MARK(2, …, net(x)).mean())

    ``places`` are the expressions by their numbers, in all files.
    """

    def __init__(self) -> None:
        self.places: list[Span] = []
        self.heads: list[Span] = []
        """The first statement of each function and loop that is not a docstring or declaration."""
        self._file = ""
        self._own: set[str] = set()
        """The attributes of ``self`` in the class that is being rewritten."""
        self._renewals: dict[ast.stmt, ast.expr] = {}

    def marked(self, tree: ast.Module, file: str) -> ast.Module:
        """Return the tree with every expression that is read wrapped; positions stay."""
        self._file = file
        self.generic_visit(tree)
        return ast.fix_missing_locations(tree)

    def visit(self, node: ast.AST) -> ast.AST:
        """Return a node with every expression that is read in it wrapped."""
        if isinstance(node, _LEFT):
            return node
        if isinstance(node, _MARKED):
            is_read = isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
            if isinstance(node, ast.Subscript) and not is_read:  # x[i] = y: only i is read
                node.slice = self.visit(node.slice)  # type: ignore[assignment]
            if not is_read or getattr(node, "attr", "") in _OF_TENSOR:
                return node  # model.state = y: ``model`` means the object, and not its value
            self.generic_visit(node)
            return self._mark(node)
        if isinstance(node, FUNCTIONS):
            defaults = node.args.defaults
            defaults[:] = [self.visit(each) for each in defaults]  # type: ignore[misc]
            node.body = self._headed(node)  # annotations and decorators stay
            return node
        if isinstance(node, LOOPS):
            head = "test" if isinstance(node, ast.While) else "iter"
            setattr(node, head, self.visit(getattr(node, head)))
            node.body = self._headed(node)
            node.orelse = [self.visit(each) for each in node.orelse]  # type: ignore[misc]
            return node
        if isinstance(node, ast.AnnAssign | ast.NamedExpr):
            if node.value is not None:  # only the value: the name is wrapped where it is read
                node.value = self.visit(node.value)  # type: ignore[assignment]
            return node
        return super().visit(node)  # type: ignore[no-any-return]

    def _headed(self, node: Loop | Function) -> list[ast.stmt]:
        """Return the rewritten body of a function or loop, which reports when it begins."""
        body, paths = node.body, _paths_in(node) | self._own
        self._renewals |= _renewals_in(node)
        first = next((i for i, each in enumerate(body) if not _is_declaration(each)), None)
        if first is None:
            return body
        at = body[first]
        self.heads.append(Span.of(self._file, at))
        told = ast.Tuple([ast.Constant(path) for path in sorted(paths)], ast.Load())
        call = _call(at, HEAD, ast.Constant(len(self.heads) - 1), told)
        begin: ast.stmt = ast.copy_location(ast.Expr(call), at)
        marked: list[ast.stmt] = [self.visit(each) for each in body[first:]]  # type: ignore[misc]
        return [*body[:first], begin, *marked]

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        """Rewrite the methods; the rest of a class body stays."""
        outer = self._own
        self._own = {path for path in _paths_in(node) if path.startswith("self.")}
        node.body = [
            self.visit(each) if isinstance(each, FUNCTIONS) else each  # type: ignore[misc]
            for each in node.body
        ]
        self._own = outer
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        """Have a function run ``x += y``: on a tensor that modifies ``x``, on a number it makes a
        new one, and only at run time it is known which of the two it is.
        """
        node.value = self.visit(node.value)  # type: ignore[assignment]
        owner = getattr(node.target, "value", None)
        if isinstance(owner, ast.Name | ast.Attribute):
            node.value = _call(node, RENEW, node.value, owner)
        step = _STEPS.get(type(node.op))
        if step is None or not isinstance(node.target, ast.Name):
            return node
        read = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
        number = self._number(node.target, is_added=True)
        call = _call(node, ADD, ast.Constant(number), ast.Constant(step), read, node.value)
        return ast.copy_location(ast.Assign([node.target], call), node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """Have statements reported that compute an attribute or an item from its old value."""
        self.generic_visit(node)
        if node in self._renewals:
            node.value = _call(node, RENEW, node.value, self._renewals[node])
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Wrap a call and its arguments, except arguments that mean an object and not its value.

        In ``autograd.grad(loss, inputs)`` the inputs must be the very tensors of the graph; methods
        with a trailing underscore modify the object itself.
        """
        function = node.func
        name = getattr(function, "attr", getattr(function, "id", ""))
        by_object = name in _BY_OBJECT or name.endswith("_")
        if isinstance(function, ast.Attribute) and not by_object:
            function.value = self.visit(function.value)  # type: ignore[assignment]
        if not by_object or name not in _BY_OBJECT:
            keep = 1 if name == "grad" else len(node.args)  # autograd.grad(loss, inputs)
            node.args = [self.visit(a) if i < keep else a for i, a in enumerate(node.args)]  # type: ignore[misc]
            for keyword in node.keywords:
                if keyword.arg not in ("out", "inputs"):
                    keyword.value = self.visit(keyword.value)  # type: ignore[assignment]
        return self._mark(node)

    def _number(self, node: ast.expr, *, is_added: bool = False) -> int:
        self.places.append(Span.of(self._file, node, is_added=is_added))
        return len(self.places) - 1

    def _mark(self, node: ast.expr) -> ast.AST:
        is_apart = isinstance(node, ast.Name) or waits(node)
        begun = ast.Constant(None) if is_apart else _call(node, BEGIN)
        return _call(node, MARK, ast.Constant(self._number(node)), begun, node)


def waits(node: ast.AST) -> bool:
    """Return whether other code may run while this part of the program waits: it has an ``await``
    or a ``yield``, so what is built meanwhile is not its own.
    """
    return any(isinstance(e, ast.Await | ast.Yield | ast.YieldFrom) for e in ast.walk(node))


def _paths_in(node: ast.AST) -> set[str]:
    """Return the attributes of variables in some code, as ``a.b.c``."""
    texts = (ast.unparse(each) for each in ast.walk(node) if isinstance(each, ast.Attribute))
    return {text for text in texts if text.replace(".", "").isidentifier()}


def _renewals_in(node: ast.AST) -> dict[ast.stmt, ast.expr]:
    """Return the statements that set an attribute or an item which the code has read before, such
    as ``self.h = cell(x, self.h)``, each with the owner of the attribute.
    """
    nodes = [each for each in ast.walk(node) if isinstance(each, _PARTS | ast.Assign)]
    paths = [each for each in nodes if isinstance(each, _PARTS)]
    read = [(ast.unparse(e), e.lineno) for e in paths if isinstance(e.ctx, ast.Load)]
    found: dict[ast.stmt, ast.expr] = {}
    for each in (own for own in nodes if isinstance(own, ast.Assign)):
        before = {text for text, line in read if line <= (each.end_lineno or line)}
        parts = (own for target in each.targets for own in ast.walk(target) if own in paths)
        owners = [own.value for own in parts if ast.unparse(own) in before]
        if owners and isinstance(owners[0], ast.Name | ast.Attribute):
            found[each] = owners[0]
    return found


def _is_declaration(each: ast.stmt) -> bool:
    is_text = isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
    return is_text or isinstance(each, ast.Global | ast.Nonlocal)


def _call(at: ast.AST, function: str, *given: ast.expr) -> ast.Call:
    name = ast.copy_location(ast.Name(function, ast.Load()), at)
    arguments = [
        ast.copy_location(each, at) if not hasattr(each, "lineno") else each for each in given
    ]
    return ast.copy_location(ast.Call(name, arguments, []), at)

"""Writes the edits that remove a cut from the path between a loss and parameters."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from gradscope.code import source
from gradscope.code.statements import flags_set, stored_names
from gradscope.fixing.edits import computed_at, moved, not_reentrant, with_flag, with_followers
from gradscope.fixing.gradient_paths import Cut, Paths, is_switch, switching_decorator
from gradscope.fixing.instrumentation import Span
from gradscope.fixing.origins import CutReason, ModeKind, Origins, Stepper
from gradscope.fixing.patch import (
    TextEdit,
    TextEdits,
    after,
    before,
    block_with,
    first_line,
    instead_of,
    removed,
    text_of,
    together,
    under,
    written,
)
from gradscope.formatting import common_module, lines_told
from gradscope.model import Applicability, Fix, FixKind, Site

_LEAVING = ("item", "tolist", "numpy")
_COPYING = ("tensor", "as_tensor", "asarray", "FloatTensor", "Tensor", "from_numpy")
_BARE = ("detach", "detach_", "cpu", "numpy", "tolist", "item", "clone")
"""Methods that stand in a row where a tensor is made an array."""
_CASTS = ("to", "float", "type_as", "type", "double", "half")

_WORDS = {
    CutReason.INTEGERS: "train on what has a derivative, as F.cross_entropy(logits, target) or a"
    " softmax; report the other one beside it",
    CutReason.SAMPLE: "use rsample(), where the distribution has it, or the log_prob of the sample",
    CutReason.FUNCTION: "hand the parameters to the Function as arguments of its own",
    CutReason.CHECKPOINT: "checkpoint(..., use_reentrant=False), or"
    " model.enable_input_require_grads() where the model has it",
}


def fixes_of(cut: Cut, ways: Paths, roots: Iterable[int]) -> list[Fix]:
    """Return what would mend a cut, the better first; what is only said is last."""
    is_built = cut.reason is CutReason.CREATE_GRAPH
    kind = FixKind.CREATE_GRAPH if is_built else FixKind.ATTACH
    found = _fixes(_proposed(cut, ways, [*roots]), kind)
    words = _WORDS.get(cut.reason, "" if found else "use the value itself, with its graph")
    if found and cut.reason is CutReason.INTEGERS:
        found = [replace(each, applicability=Applicability.MAYBE_INCORRECT) for each in found]
        words = "multiply what is chosen by the probability of it"
    elif found and cut.reason is CutReason.CHECKPOINT:
        words = "model.enable_input_require_grads(), where the model has it"
    return [*found, *([Fix(FixKind.ATTACH, words)] if words else [])]


_LISTS, _DICTS = (ast.List, ast.ListComp), (ast.Dict, ast.DictComp)
_STEM = re.compile(r"[0-9_]+$|(?<=_)[a-z]$")  # the number of an attribute, or its letter
_GIVE_ONCE = "filter", "map", "chain", "parameters"
_MOST_LISTED = 3  # edits that are tried: most programs have one such line
_Proposed = Iterable[tuple[str, TextEdits]]


def _fixes(proposed: _Proposed, kind: FixKind = FixKind.ATTACH) -> list[Fix]:
    fixes = (Fix(kind, message, written(*pieces)) for message, pieces in proposed)
    return [fix for fix in fixes if fix.edits]


def _proposed(cut: Cut, ways: Paths, roots: Sequence[int]) -> _Proposed:
    site = cut.site
    if site is None:
        return
    match cut.reason:
        case CutReason.DETACH | CutReason.DATA:
            yield from _attached(cut, site, ways, roots)
        case CutReason.CREATE_GRAPH:
            yield "pass create_graph=True", with_flag(_line(site), "create_graph")
        case CutReason.COPY:
            yield from ((f"keep the graph: {text}", own) for text, own in _not_copied(site))
        case CutReason.CHECKPOINT:
            yield "checkpoint(..., use_reentrant=False)", not_reentrant(site.file)
        case CutReason.LEFT:
            yield from _kept(cut, site)
        case CutReason.SAMPLE:
            for call in _calls_at(site, ("sample",)):
                if isinstance(call.func, ast.Attribute):
                    text = f"{text_of(call.func.value, site.file)}.rsample"
                    pieces = (instead_of(call.func, site.file, text),)
                    yield "draw with rsample(), which has a derivative", pieces
        case CutReason.MODE:
            yield from _in_grad_mode(cut, site)
        case CutReason.MARKED:
            statement = source.statement_at(site)
            if statement is not None:
                yield "leave mark_non_differentiable out", removed(statement, site.file)
        case CutReason.INTEGERS:
            yield from _softened(site)


def _line(site: Site) -> Span:
    return Span.at(site.file, site.line)


def _statement(site: Site) -> ast.stmt:
    return source.statement_at(site) or ast.Pass()


def _calls_at(site: Site, names: Sequence[str]) -> list[ast.Call]:
    """Return the call at a site, if it has one of these names, or else those of its statement."""
    statement = _statement(site)
    calls = [c for c in source.calls_in(statement) if source.called_name(c) in names]
    own = [call for call in calls if source.is_at(call, site)]
    return own or [call for call in calls if source.spans(call, site.line)]


# detach and data


def _attached(cut: Cut, site: Site, ways: Paths, roots: Sequence[int]) -> _Proposed:
    """Take the cut out: where its variable is read for nothing but the loss, or else where it is
    made.
    """
    file = site.file
    gone = _without_cut(site, file)
    if not gone:
        return
    statement = source.statement_at(site)
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        name = statement.targets[0].id
        for line in ways.bare_lines(roots, cut.value):
            reads = [
                each
                for each in source.reads_of(_statement(line))
                if isinstance(each, ast.Name) and each.id == name and line.file == file
            ]
            for read in reads:
                pieces = computed_at(file, statement, read, gone)
                yield f"in line {read.lineno}, use the values themselves", pieces
    what = "detach()" if cut.reason is CutReason.DETACH else ".data"
    yield f"leave out {what} in line {site.line}", gone


def _without_cut(site: Site, file: str) -> TextEdits:
    for call in _calls_at(site, ("detach", "detach_")):
        if isinstance(call.func, ast.Attribute):
            return (instead_of(call, file, text_of(call.func.value, file)),)
    for node in ast.walk(_statement(site)):
        if isinstance(node, ast.Attribute) and node.attr == "data":
            return (instead_of(node, file, text_of(node.value, file)),)
    return ()


# numbers and copies


def _not_copied(site: Site) -> _Proposed:
    for call in _calls_at(site, _COPYING):
        if not call.args:
            continue
        given = text_of(call.args[0], site.file)
        text = f"torch.stack({given})"
        if isinstance(call.args[0], ast.List | ast.ListComp | ast.Name):
            yield text, (instead_of(call, site.file, text),)
        if not isinstance(call.args[0], ast.List | ast.ListComp):
            yield given, (instead_of(call, site.file, given),)


def _kept(cut: Cut, site: Site) -> _Proposed:
    """Keep the tensor in the place of its number, and what takes the numbers up takes tensors."""
    gone = _without_leaving(site)
    if not gone:
        return
    back = next(iter(cut.back), None)
    message = "keep the tensor: leave out " + ("item()" if cut.how == "item" else f"{cut.how}()")
    if back is not None:
        for text, pieces in _not_copied(back):
            if back == site:
                break
            yield f"{message}, then {text}", (*gone, *pieces)
    yield message, gone


def _without_leaving(site: Site) -> TextEdits:
    file = site.file
    for call in _calls_at(site, _LEAVING):
        node: ast.expr = call
        while isinstance(node, ast.Call) and source.called_name(node) in _BARE:
            if not isinstance(node.func, ast.Attribute):
                break
            node = node.func.value
        return (instead_of(call, file, text_of(node, file)),)
    for call in _calls_at(site, ("float",)):
        if len(call.args) == 1:
            return (instead_of(call, file, text_of(call.args[0], file)),)
    return ()


# grad mode


def _in_grad_mode(cut: Cut, site: Site) -> _Proposed:
    mode, at = cut.mode, cut.mode_site
    if mode is None or at is None:
        return
    if mode.kind is ModeKind.DECORATOR:
        if (each := switching_decorator(at)) is not None:
            name = ast.unparse(each.func if isinstance(each, ast.Call) else each)
            line = TextEdit(at.file, (each.lineno, 0), (each.lineno + 1, 0), "")
            yield f"leave out @{name}()", (line,)
        return
    block = source.innermost(at.file, at.line, ast.With)
    if mode.kind is ModeKind.WITH and block is not None and first_line(block) == at.line:
        items = (each.context_expr for each in block.items)
        item = next(filter(is_switch, items), None)
        if item is None:
            return
        for module in _modules_called(site):
            text = f"torch.set_grad_enabled({module}.training)"
            follows = f"let the mode follow the model: with {text}:"
            yield follows, (instead_of(item, at.file, text),)
        text = "torch.enable_grad()"
        yield f"with {text}:", (instead_of(item, at.file, text),)
    statement = source.statement_at(site)
    if statement is not None and "inference" not in mode.name:
        pieces = under(statement, site.file, "torch.enable_grad()")
        yield f"turn it on for line {site.line}: with torch.enable_grad():", pieces
    if mode.kind is ModeKind.CALL and (switch := source.statement_at(at)) is not None:
        yield f"leave out the switch in line {at.line}", removed(switch, at.file)


def _modules_called(site: Site) -> Iterator[str]:
    """Yield what a line calls that may be a module: ``self.model`` of ``self.model(x)``."""
    for call in source.calls_in(_statement(site)):
        text = ast.unparse(call.func)
        is_own = not text.startswith(("torch.", "F.", "nn."))
        if source.is_at(call, site) and is_own and text.replace(".", "_").isidentifier():
            yield text


# integers


def _softened(site: Site) -> _Proposed:
    """Choose with ``gumbel_softmax``, in the place of a one-hot tensor of an argmax."""
    statement = _statement(site)
    for call in source.calls_in(statement):
        match call.args[:1]:
            case [ast.Call(func=ast.Attribute(value=owner, attr="argmax"), args=given)] if (
                source.called_name(call) == "one_hot"
            ):
                logits = given[0] if ast.unparse(owner) == "torch" else owner
            case _:
                continue
        prefix = ast.unparse(call.func).rpartition(".")[0]
        functional = f"{prefix}." if prefix else ""
        text = f"{functional}gumbel_softmax({text_of(logits, site.file)}, hard=True)"
        outer: ast.expr = call
        for other in source.calls_in(statement):
            own = other.func
            if isinstance(own, ast.Attribute) and own.value is outer and own.attr in _CASTS:
                outer = other
        message = f"{text}, which chooses with noise and has a gradient"
        yield message, (instead_of(outer, site.file, text),)


# frozen


def thawed(frozen: Sequence[int], ways: Paths) -> list[Fix]:
    """Return what has frozen parameters require grad again."""
    words = Fix(FixKind.ATTACH, "requires_grad_(True) at what is to be trained")
    return [*_fixes(_thawed(frozen, ways.record))[:3], words]


def _thawed(frozen: Sequence[int], record: Origins) -> _Proposed:
    routes = (each for n in frozen for each in (record.leaves[n].frozen, record.leaves[n].made))
    files = dict.fromkeys(site.file for each in routes if each >= 0 for site in record.routes[each])
    for file, each in ((f, e) for f in files for e in flags_set(f, "requires_grad", value=True)):
        method = f"{ast.unparse(each.targets[0])}_(True)"
        message = f"{method} in line {each.lineno}: a module has no such property"
        yield message, (instead_of(each, file, method),)
    names = [record.leaves[n].name for n in frozen if record.leaves[n].name]
    owner = names[0].partition(".")[0] if names else ""
    for made in dict.fromkeys(record.leaves[n].made for n in frozen):
        for site in record.routes[made] if made >= 0 and owner else ():
            statement = _statement(site)
            if isinstance(statement, ast.Assign) and owner in stored_names(statement):
                thaw = f"{owner}.requires_grad_(True)"
                message = f"unfreeze it before the optimizer: {thaw}"
                yield message, after(statement, site.file, [thaw])
    for route in dict.fromkeys(record.leaves[n].frozen for n in frozen):
        froze = record.site(route)
        for call in source.calls_in(_statement(froze)) if froze is not None else ():
            is_frozen = source.called_name(call) == "requires_grad_" and call.args
            if froze is not None and is_frozen and isinstance(call.args[0], ast.Constant):
                message = f"requires_grad_(True) in line {froze.line}, at what is to be trained"
                yield message, (instead_of(call.args[0], froze.file, "True"),)


def mistaken(made: Site) -> list[Fix]:
    """Return what reads what a class makes at a site and never reads, where it reads its like once
    more.

        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm1(x))  # self.norm2
    """
    owner = source.innermost(made.file, made.line, ast.ClassDef)
    making = _statement(made)
    if owner is None or not isinstance(making, ast.Assign):
        return []
    made_of = {
        ast.unparse(each.targets[0]): ast.unparse(each.value)
        for each in ast.walk(owner)
        if isinstance(each, ast.Assign)
    }
    name, stem = ast.unparse(making.targets[0]), _STEM.sub("", ast.unparse(making.targets[0]))
    alike = [n for n, of in made_of.items() if _STEM.sub("", n) == stem and of == made_of[name]]
    reads = [each for each in source.reads_of(owner) if ast.unparse(each) in alike]
    reads.sort(key=lambda each: (each.lineno, each.col_offset))
    texts = [ast.unparse(each) for each in reads]
    if name in texts or len(reads) != len(alike):
        return []
    at = alike.index(name)
    if texts.count(texts[at]) < 2:
        return []
    message = f"read `{name}` in line {reads[at].lineno}, which reads `{texts[at]}` once more"
    return _fixes([(message, (instead_of(reads[at], made.file, name),))], FixKind.OTHER)


# who steps them


def given_to(holder: Stepper, leaves: Sequence[int], ways: Paths) -> list[Fix]:
    """Return what has an optimizer hold parameters that it does not."""
    first, built = ways.record.leaves[leaves[0]], ways.record.site(holder.made)
    made = ways.line_beside(first.made, holder.made)
    if built is None or made is None:
        return []
    found: list[Fix] = []
    if (is_later := first.turn > holder.turn) and built.file == made.file:
        message = f"build `{holder.name or 'the optimizer'}` behind line {made.line}"
        found = _fixes([(message, _built_behind(built, made))], FixKind.REORDER)
    is_once = _around(made) is _around(built)  # it is given once, and by a name that is known there
    later = (made if is_later else built) if is_once else None
    return [*found, *_fixes(_given_to(holder, leaves, ways.record, later))]


def _around(site: Site) -> ast.stmt | None:
    return source.innermost(site.file, site.line, source.FUNCTIONS + source.LOOPS)


def _given_to(
    holder: Stepper, leaves: Sequence[int], record: Origins, later: Site | None
) -> _Proposed:
    """Give them to it by way of the module that has them, or behind the line where both exist."""
    first = record.leaves[leaves[0]]
    own = (record.leaves[n] for n in leaves if record.leaves[n].made >= 0)
    made = dict.fromkeys(at for leaf in own for at in _made_in(record.routes[leaf.made], leaf.name))
    if made:
        lines = lines_told(sorted(statement.lineno for _, statement in made))
        message = f"keep the modules of {lines} in an nn.ModuleList or nn.ModuleDict"
        yield message, tuple(_as_modules(file, statement.value) for file, statement in made)
    owner = common_module(record.leaves[n].name for n in leaves)
    if owner and holder.name and later and (behind := source.statement_at(later)):
        is_one = len(leaves) == 1 and owner == first.name
        what = f"[{owner}]" if is_one else f"{owner}.parameters()"
        line = f'{holder.name}.add_param_group({{"params": {what}}})'
        yield line, after(behind, later.file, [line])


def _made_in(route: Sequence[Site], name: str) -> Iterator[tuple[str, ast.Assign]]:
    """Yield what makes the lists and dicts of the classes on a route from which a name takes items:
    ``self.layers = []`` of ``model.layers[0].weight``.
    """
    taken = re.findall(r"(\w+)\[", name)
    for site in route:
        owner = source.innermost(site.file, site.line, ast.ClassDef) or source.tree(site.file)
        for each in (node for node in ast.walk(owner) if isinstance(node, ast.Assign)):
            attribute = ast.unparse(each.targets[0]).rpartition(".")[2]
            if attribute in taken and isinstance(each.value, _LISTS + _DICTS):
                yield site.file, each


def _as_modules(file: str, value: ast.expr) -> TextEdit:
    """Have a list or dict of modules be one that ``parameters()`` looks into."""
    kind = "ModuleList" if isinstance(value, _LISTS) else "ModuleDict"
    where = "nn" if "nn" in source.imported(file) else "torch.nn"
    return instead_of(value, file, f"{where}.{kind}({text_of(value, file)})")


def _built_behind(built: Site, made: Site) -> TextEdits:
    """Move a statement, and what is computed from what it binds, behind that around a place."""
    statement = _statement(built)
    block = block_with(made.file, statement)
    goal = next((each for each in block if source.spans(each, made.line)), None)
    own = [] if goal is None else with_followers(block[: block.index(goal)], [statement])
    if not own or any(isinstance(each, source.LOOPS) for each in own):
        return ()
    return moved(_line(built), _line(made), *own[1:])


def reset(step: Site, places: Iterable[Site]) -> list[Fix]:
    """Return what resets the gradients that a step has used, and not before it, at one of some
    ``places``.
    """
    if not (line := _reset_line(step)):
        return []
    once = after(_statement(step), step.file, [line])
    found = []
    for place in places:
        message = f"reset them behind the step, and not in line {place.line}: {line}"
        found.append((message, together(removed(_statement(place), place.file), once)))
    return _fixes(found or [(f"reset what the optimizer steps, once a step: {line}", once)])


def reset_at(step: Site, call: Site) -> list[Fix]:
    """Return what resets the gradients that a step uses before a backward call adds to them."""
    line = _reset_line(step)
    edit = before(_statement(call), call.file, [line] if line else [])
    return _fixes([(f"reset what was left before line {call.line}: {line}", edit)])


def _reset_line(step: Site) -> str:
    """Return the code that resets what a step uses; empty if it is not known. What is given to
    ``step()`` is a closure of the program's, or the optimizer, as in ``scaler.step(optimizer)``.
    """
    call = source.call_at(step)
    if call is None or not isinstance(call.func, ast.Attribute):
        return ""
    nodes = (each.node for each in source.parsed(step.file).nodes)
    functions = {each.name for each in nodes if isinstance(each, source.FUNCTIONS)}
    given = call.args if source.called_name(call) == "step" else []
    owners = [n for n in given[:1] if isinstance(n, ast.Name | ast.Attribute)]
    owners = [n for n in owners if ast.unparse(n).rpartition(".")[2] not in functions]
    return f"{text_of((*owners, call.func.value)[0], step.file)}.zero_grad()"


def listed_once(file: str) -> list[Fix]:
    """Return what makes a list of parameters that an iterator gives once, where it is returned or
    gets a name.

        own = filter(lambda p: p.requires_grad, net.parameters())
        print(sum(p.numel() for p in own))
        opt = SGD([{"params": own}], 0.1)  # nothing is left
    """
    found = []
    for node in ast.walk(source.tree(file)):
        value = node.value if isinstance(node, ast.Assign | ast.Return) else None
        is_call = isinstance(value, ast.Call) and source.called_name(value) in _GIVE_ONCE
        if value is not None and (is_call or isinstance(value, ast.GeneratorExp)):
            text = f"list({text_of(value, file)})"
            found.append((f"make a list in line {value.lineno}", (instead_of(value, file, text),)))
    return _fixes(found)[:_MOST_LISTED]

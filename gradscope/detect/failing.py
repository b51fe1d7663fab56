"""Explains exceptions of autograd by their frames: at which node of a backward call one was raised,
as anomaly mode would say, which line is behind what torch refuses, and why a tensor that is copied
or sent to another process has a graph.
"""

from __future__ import annotations

import ast
import copy
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, takewhile
from multiprocessing.process import BaseProcess
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gradscope.code import source, statements
from gradscope.collect.calls import EngineCall
from gradscope.collect.inspection import Inspection
from gradscope.collect.inspector import Inspector
from gradscope.collect.nodes import kind_of
from gradscope.collect.state import State
from gradscope.detect.hazards import run_order, way_of
from gradscope.detect.node_facts import built_at
from gradscope.detect.suspects import LAST
from gradscope.model import Failure, Finding, Related, Site
from gradscope.model.variable_paths import Origin, Path
from gradscope.program.containers import class_name, is_a, is_exactly, module_file, module_of
from gradscope.program.names import attributes_of, names_in, variable_of
from gradscope.program.reach import Walk, steps_down, tensors_with_graph
from gradscope.program.sites import (
    USER,
    Place,
    classify,
    frames_from,
    owner_of,
    place_in,
    user_frames,
)
from gradscope.program.tensors import describe, held_node, is_held_leaf, leaves_of, requires_grad
from gradscope.program.variables import (
    frames_of_threads,
    is_module_level,
    local_variables,
    variables,
)
from gradscope.rules import gs604
from gradscope.torch_private import DEEPCOPY_TENSOR, ENGINE_CALL, FUNCTION_BACKWARD, BackwardHook

_IN_PYTHON = (FunctionType, MethodType)
_NAMED = re.compile(r"Function '?(\w+)'? ")
"""How torch's own words name the node: ``Function MulBackward0 returned an invalid gradient``."""
_AGAIN = "call backward once for each forward pass: add the losses up first"
_OF_AUTOGRAD = re.compile(r"grad\b|grad_fn|gradient|inference|in-?place|derivative|backward", re.I)
_SENDS = re.compile("put|send|submit|spawn|start|apply|i?map")
"""How what sends an object to another process begins."""
_STARTED = BaseProcess._bootstrap.__code__  # type: ignore[attr-defined]
_PICKLES = ("dumps", "dump")
_NEAREST = 8  # nodes, of which the first with a known line stands for a graph
_KEPT_BY = ("torch.nn.utils.weight_norm", "torch.nn.utils.spectral_norm")

Way: TypeAlias = Sequence[tuple[FrameType, Place]]
_Refused: TypeAlias = tuple[Sequence[Related], str, str]
"""Notes, what is said of the line, and what to do."""


def failure(error: BaseException, inspector: Inspector) -> Failure | None:
    """Return what is known of an exception that ends the program; None where it is none of
    autograd's, or a finding explains it.
    """
    way = way_of(error)
    users = [(frame, place.site) for frame, place in way if owner_of(place.code) == USER]
    engine = next((i for i, (frame, _) in enumerate(way) if frame.f_code is ENGINE_CALL), None)
    if not users or engine is None:
        return refused(error, *users[0]) if users else None
    if inspector.state.failed is None:
        return None
    site, (number, again) = users[0][1], inspector.state.failed
    calls = (place.site for _, place in way[engine:] if owner_of(place.code) == USER)
    call = next(calls, None)
    notes = [*_nodes(error, way[: engine + 1], inspector)]
    if site == call:
        return Failure(site, f"raised in backward call {number:,}", tuple(notes))
    notes.append(Related("failing_node", call, f"in backward call {number:,}"))
    if again is None:
        return Failure(site, "raised here", tuple(notes))
    kept = " and kept the graph" if again.retain_graph else ""
    ran = f"backward call {again.number:,} ran this part{kept}: each hook now runs once more"
    notes.append(Related("retained_by", again.site, ran))
    return Failure(site, "raised here", tuple(notes), _AGAIN)


# in a backward call


def _nodes(error: BaseException, way: Way, inspector: Inspector) -> Iterator[Related]:
    """Yield what is known of the node at which the engine was when this was raised, the call of the
    engine being the last of the way.
    """
    state, given = inspector.state, dict[str, Any](local_variables(way[-1][0]))
    asked = EngineCall.of(given["t_outputs"], *given["args"], **given["kwargs"])
    look = inspector.inspect(asked, asked.roots, None)
    state.names.learn_variables(user_frames(way[-1][0]))
    if (module := next(filter(None, (_hooked_module(f, state) for f, _ in way)), None)) is not None:
        inside = (t.place for t in look.marks if t.module and t.module[0] == module)
        first = next((place.site for place in inside if place), None)
        called = f"; `{module}` was called here" if first else ""
        yield Related("created", first, f"in a backward hook of `{module}`{called}")
        return
    nodes = _failed_at(error, way, look)
    leaves = leaves_of(look.nodes[i] for i in nodes)
    if leaves and len(leaves) == len(nodes):
        names = " or ".join(f"`{state.names.of_tensor(leaf) or 'a leaf'}`" for leaf in leaves[:3])
        yield Related("failing_node", None, f"in a hook of {names}")
    elif len(nodes) == 1:
        made = built_at(look, state.generations, nodes[0])
        own = look.marks[nodes[0]].module
        of = f" of `{own[0]}` ({own[1]})" if own else ""
        what = f"at node `{look.nodes[nodes[0]].name()}`{of}"
        yield Related("failing_node", made, f"{what}, which was made here" if made else what)


def _failed_at(error: BaseException, way: Way, look: Inspection) -> list[int]:
    """Return the nodes at one of which the engine was. A Function's own frame says which it is, a
    hook's code whose it is, torch's words may name it; and what ran before it has been freed.
    """
    for frame, _ in way:
        if frame.f_code is FUNCTION_BACKWARD:
            node = dict(local_variables(frame))["self"]
            return [look.index[node]] if node in look.index else []
    order, freed = run_order(look), {*look.freed}
    rest = order[max((at + 1 for at, i in enumerate(order) if i in freed), default=0) :]
    if not look.asked.keep_graph:
        kept = (at for at, i in enumerate(rest) if look.marks[i].has_buffers)
        rest = rest[: next(kept, len(rest)) + 1]
    if len(way) > 1:  # code of Python's ran: that of a hook
        hooked = {*_hooked(way[-2][0].f_code, look)}
        if found := [i for i in rest if i in hooked]:
            return found
    if said := _NAMED.search(str(error)):
        named = [i for i in order if look.nodes[i].name() == said[1]]
        # What returned no number was freed before that was seen.
        return [i for i in named if i in rest] or [i for i in named if i in freed][-1:]
    return [i for i in rest if not kind_of(type(look.nodes[i])).is_leaf]


def _hooked(code: CodeType, look: Inspection) -> Iterator[int]:
    """Yield the nodes of tensors that are there and have a hook that runs this code."""
    index: dict[Any, int] = look.index
    leaves = {id(n.variable): i for n, i in index.items() if kind_of(type(n)).is_leaf}
    for tensor in (*tensors_with_graph(), *leaves_of(look.nodes)):
        hooks = [h for h in (tensor._backward_hooks or {}).values() if is_exactly(h, *_IN_PYTHON)]
        if any(hook.__code__ is code for hook in hooks):
            i = leaves.get(id(tensor), index.get(held_node(tensor)))
            yield from () if i is None else (i,)


def _hooked_module(frame: FrameType, state: State) -> str | None:
    """Return the name of the module whose backward hook a frame calls."""
    hook = dict(local_variables(frame)).get("self")
    if not is_a(hook, BackwardHook):
        return None
    named = (name for name, each in state.names.named_modules if each is hook.module)
    return next(named, type(hook.module).__name__)


# outside of one


def refused(error: BaseException, frame: FrameType, site: Site) -> Failure | None:
    """Return what is known of an exception raised at a place of the program's, where that frame
    stands; None where it is none of autograd's.
    """
    text = str(error)
    explain = next((own for words, own in _KNOWN.items() if re.search(words, text)), None)
    if explain is not None:
        notes, label, instead = explain(text, frame, site)
        return Failure(site, label, tuple(notes), instead)
    is_theirs = isinstance(error, RuntimeError) and _OF_AUTOGRAD.search(text)
    return Failure(site, "raised here") if is_theirs else None


def _leaf(text: str, frame: FrameType, site: Site) -> _Refused:
    leaves = (n for n, t in _tensors(frame, site) if is_held_leaf(t) and requires_grad(t))
    notes = []
    for name in islice(leaves, 1):
        made = statements.sets_requires_grad(site, name)
        here = ", from here on" if made else ""
        notes.append(Related("made", made, f"`{name}` is a leaf that requires grad{here}"))
    update = "put the update under `with torch.no_grad():`, so that it is not recorded"
    return notes, "changed in place while grad mode is on", update


def _view(text: str, frame: FrameType, site: Site) -> _Refused:
    name = statements.changed_by(site).target
    notes = []
    if (made := statements.value_given(site, name)) is not None:
        at = source.of_node(made, site.file, site.function)
        called = [source.called_name(call) for call in source.calls_in(made)]
        by = next((f"`{each}` gives" for each in called if each in _VIEWS), "a loop gives")
        notes.append(Related("made", at, f"`{name}` is one of the views that {by} of one tensor"))
    copy = f"take a copy, `{name or 'x'}.clone()`, or compute it out of place"
    whole = "to change the whole tensor, index that: `x[0].mul_(2)`"
    return notes, "changed in place", f"{copy}; {whole}"


def _inference(text: str, frame: FrameType, site: Site) -> _Refused:
    name = next((name for name, value in _tensors(frame, site) if value.is_inference()), "")
    entered = statements.inference_mode(site, name)
    here = ", which was entered here" if entered else ""
    note = Related("mode", entered, f"`{name}` was made in inference mode{here}")
    copy = f"`{name or 'x'}.clone()` outside of inference mode"
    instead = f"make it under `torch.no_grad()` instead, or take {copy}"
    return [note] if name else [], "an inference tensor cannot be part of a graph", instead


def _overwritten(text: str, frame: FrameType, site: Site) -> _Refused:
    notes = []
    for file, line, function in _STACK.findall(text)[-1:]:
        made = Site(file, int(line), function=function)
        notes.append(Related("made", made, "a compiled function made the tensor here"))
    if (later := statements.called_again(site)) is not None:
        notes.append(Related("modified_by", later, "a later run wrote into the same memory"))
    step = "call torch.compiler.cudagraph_mark_step_begin() before each run whose results may go"
    clone = f"clone what is to stay, outside of the compiled function; or {step}"
    return notes, "reads what was overwritten", clone


def _result(*_: object) -> _Refused:
    instead = "return it without its graph: `.detach()`, or `.item()`"
    return [], "what another process sends back has a graph", instead


def _node(*_: object) -> _Refused:
    instead = "store the tensor without its graph (`.detach()`), and no node"
    return [], "a part of this is a node of a graph, as a `grad_fn` is", instead


_VIEWS = ("unbind", "split", "chunk", "tensor_split", "split_with_sizes", "hsplit", "vsplit")
_STACK = re.compile(r'File "([^"]+)", line (\d+), in (\w+)')
_KNOWN: dict[str, Callable[[str, FrameType, Site], _Refused]] = {
    "leaf Variable that requires grad is being used in an in-place": _leaf,
    "is a view and is being modified inplace": _view,
    "[Ii]nference tensor": _inference,
    "output of CUDAGraphs that has been overwritten": _overwritten,
    "Error sending result.*Cowardly refusing": _result,
    r"cannot pickle '\w+Backward\d*' object": _node,
}
"""How torch words what it refuses, and what explains that."""


def _tensors(frame: FrameType, site: Site) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that the statement at a place names, each as it writes it."""
    wanted = statements.names_at(site)
    pairs = [*variables(frame)]
    pairs += [each for pair in pairs if pair[0] == "self" for each in attributes_of(*pair)]
    return ((n, value) for n, value in pairs if n in wanted and is_a(value, Tensor))


# a tensor with a graph that is copied, or sent to another process


def copied(error: BaseException, inspector: Inspector) -> Finding | None:
    """Return the finding for an exception that ``copy.deepcopy`` has raised at a tensor."""
    way = way_of(error)
    if not way or way[0][0].f_code is not DEEPCOPY_TENSOR:
        return None
    places = [i for i, (frame, _) in enumerate(way) if frame.f_code is copy.deepcopy.__code__]
    chain = [dict(local_variables(way[i][0]))["x"] for i in reversed(places)]
    users = [each for each in way[max(places, default=0) :] if owner_of(each[1].code) == USER]
    if not users or not chain:
        return None
    frame, place = users[0]
    path = _path(frame, place.site, chain)
    holders = [vars(each) for each in chain if is_a(each, torch.nn.Module)]
    hooks = [*map(type, holders[-1]["_forward_pre_hooks"].values())] if holders else []
    by = next((hook.__module__ for hook in hooks if hook.__module__ in _KEPT_BY), "")
    facts = _facts(chain[-1], [path], _files([frame], chain), inspector)
    facts = facts._replace(site=place.site, by=by, is_module=is_a(chain[0], torch.nn.Module))
    return gs604.finding(facts)


def sent(tensor: Any, inspector: Inspector) -> Finding:
    """Return the finding for a tensor with a graph, which is about to be pickled for another
    process.
    """
    own = [*takewhile(lambda each: each.f_code is not _STARTED, frames_from(sys._getframe(1)))]
    users = [each for each in own if owner_of(each.f_code) == USER]
    site = place_in(users[0]).site if users else None
    others = () if own[-1].f_back is not None else frames_of_threads().values()
    frames = users or [each for other in others for each in user_frames(other)]
    walk = Walk(LAST, wanted=tensor)
    walk.enter_frames(frames)
    walk.run()
    given = [dict(local_variables(f)).get("obj") for f in own if f.f_code.co_name in _PICKLES]
    names = {name for frame in frames for name in names_in(frame, given) if name}
    paths = sorted(walk.paths_to(tensor), key=lambda path: (path.root not in names, len(path.text)))
    facts = _facts(tensor, paths, files := _files(frames), inspector)
    if site is None and paths:
        site = _sending_line(files, paths[0].root)
    return gs604.finding(facts._replace(sent=True, site=site))


def _files(frames: Iterable[FrameType], holders: Iterable[object] = ()) -> list[str]:
    """Return the user's files whose code runs in frames, or has the classes of holders."""
    names = (module_of(type(each)) for each in holders)
    classes = (file for file in map(module_file, names) if file and classify(file) == USER)
    return [*dict.fromkeys([*(frame.f_code.co_filename for frame in frames), *classes])]


def _facts(
    tensor: Any, paths: Sequence[Path], files: Sequence[str], inspector: Inspector
) -> gs604.Crossing:
    node, state = held_node(tensor), inspector.state
    look = inspector.walk([] if node is None else [node])
    lines = (built_at(look, state.generations, i) for i in range(min(len(look.nodes), _NEAREST)))
    made = next(filter(None, lines), None)
    # What has no line of its own was stored with what holds it: Step(state, value).
    ways = [path.up_to(n) for path in paths[:1] for n in range(len(path.steps), 0, -1)]
    stores = (statements.store_of((way,), files, container=way != paths[0])[0] for way in ways)
    stored, name = next(filter(None, stores), None), paths[0].text if paths else ""
    return gs604.Crossing(False, None, name, describe(tensor), stored, made, after=state.calls)


def _path(frame: FrameType, site: Site, chain: list[Any]) -> Path:
    """Return the path from what the code at a site copies, down to what it holds in the end."""
    call, code = source.call_at(site), frame.f_code
    if call is not None and source.called_name(call) == "deepcopy" and call.args:
        written = ast.unparse(call.args[0])
    else:
        written = variable_of(frame, chain[0]) or class_name(type(chain[0]))
    owner = "global" if is_module_level(frame) else "local"
    origin = Origin(owner, code.co_qualname, code.co_filename, code.co_firstlineno)
    return Path.of(origin, written, steps_down(chain))


def _sending_line(files: Iterable[str], name: str) -> Site | None:
    """Return the one call of the user's that can have sent what a variable leads to."""
    found = [
        source.of_node(node, file, function)
        for file in files
        for node, function, _ in source.parsed(file).nodes
        if isinstance(node, ast.Call) and _SENDS.match(source.called_name(node))
        if any(name in {n.split(".")[0] for n in source.dotted_names(each)} for each in node.args)
    ]
    return found[0] if len(found) == 1 else None

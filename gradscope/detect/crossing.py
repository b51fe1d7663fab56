"""Explains why a tensor that is copied or sent to another process has a graph: what leads to it,
which line stored it, and where its graph was made.
"""

from __future__ import annotations

import ast
import copy
import re
import sys
from collections.abc import Iterable, Sequence
from itertools import takewhile
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

import torch

from gradscope.code import source
from gradscope.code.statements import store_of
from gradscope.collect.inspector import Inspector
from gradscope.collect.state import State
from gradscope.detect.hazards import way_of
from gradscope.detect.node_facts import built_at
from gradscope.detect.suspects import LAST
from gradscope.model import Finding, Site
from gradscope.model.variable_paths import Origin, Path
from gradscope.program.containers import class_name, is_a, module_file, module_of
from gradscope.program.names import names_in, variable_of
from gradscope.program.reach import Walk, steps_down
from gradscope.program.sites import USER, classify, frames_from, owner_of, place_in, user_frames
from gradscope.program.tensors import describe, held_node
from gradscope.program.variables import frames_of_threads, is_module_level, local_variables
from gradscope.rules import gs604
from gradscope.torch_private import DEEPCOPY_TENSOR

_SENDS = re.compile("put|send|submit|spawn|start|apply|i?map")
"""How what sends an object to another process begins."""
_STARTED = BaseProcess._bootstrap.__code__  # type: ignore[attr-defined]
_PICKLES = ("dumps", "dump")
_NEAREST = 8  # nodes, of which the first with a known line stands for a graph
_KEPT_BY = ("torch.nn.utils.weight_norm", "torch.nn.utils.spectral_norm")


def copied(error: BaseException, state: State, inspector: Inspector) -> Finding | None:
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
    facts = _facts(chain[-1], [path], _files([frame], chain), state, inspector)
    facts = facts._replace(site=place.site, by=by, is_module=is_a(chain[0], torch.nn.Module))
    return gs604.finding(facts)


def sent(tensor: Any, state: State, inspector: Inspector) -> Finding:
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
    facts = _facts(tensor, paths, files := _files(frames), state, inspector)
    if site is None and paths:
        site = _sending_line(files, paths[0].root)
    return gs604.finding(facts._replace(sent=True, site=site))


def _files(frames: Iterable[FrameType], holders: Iterable[object] = ()) -> list[str]:
    """Return the user's files whose code runs in frames, or has the classes of holders."""
    names = (module_of(type(each)) for each in holders)
    classes = (file for file in map(module_file, names) if file and classify(file) == USER)
    return [*dict.fromkeys([*(frame.f_code.co_filename for frame in frames), *classes])]


def _facts(
    tensor: Any, paths: Sequence[Path], files: Sequence[str], state: State, inspector: Inspector
) -> gs604.Crossing:
    node = held_node(tensor)
    look = inspector.walk([] if node is None else [node])
    lines = (built_at(look, state.generations, i) for i in range(min(len(look.nodes), _NEAREST)))
    made = next(filter(None, lines), None)
    # What has no line of its own was stored with what holds it: Step(state, value).
    ways = [path.up_to(n) for path in paths[:1] for n in range(len(path.steps), 0, -1)]
    stores = (store_of((way,), files, container=way != paths[0])[0] for way in ways)
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

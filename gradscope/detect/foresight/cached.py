"""Foresees that a loop uses again what ``parametrize.cached()`` around it keeps."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from types import FrameType

from gradscope.code import places, source
from gradscope.code.liveness import Effect, Read, iterators_at
from gradscope.code.statements import with_cached
from gradscope.detect.foresight.held import Freeing, Held
from gradscope.detect.foresight.loops import Loops
from gradscope.detect.foresight.objects import Objects
from gradscope.detect.foresight.outlook import Outlook
from gradscope.detect.foresight.reading import Reading
from gradscope.model import BackwardCall, Site
from gradscope.program.sites import place_in
from gradscope.rules.base import place
from gradscope.torch_private import cached_parametrizations


def cached_over_loops(
    freeing: Freeing, frames: Sequence[FrameType], record: BackwardCall
) -> Iterator[tuple[Held, Outlook]]:
    """Yield what a call will free of the cache, under the condition that its loop goes on.

    Which modules the loop runs is not read: the cache keeps what they share until it is closed.
    """
    for name, tensor in cached_parametrizations():
        held = Held(tensor)
        if record.site is None or not freeing.trace(held):
            continue
        for frame in frames:
            here = place_in(frame).site
            loop = source.loop_around(here) if with_cached(here) is not None else None
            if loop is not None and not _is_over(frame, loop, held):
                yield held, _outlook(f"<cached {name}>", frame, loop, record.site)
                break


def _is_over(frame: FrameType, loop: source.Loop, held: Held) -> bool:
    """Return whether the innermost loop of a frame has no element left."""
    depths = iterators_at(frame.f_code, frame.f_lasti)
    if not depths or not isinstance(loop, ast.For):
        return False
    return Loops().of(frame, Objects(frame), held.tensor, ()).is_spent(max(depths))


def _outlook(name: str, frame: FrameType, loop: source.Loop, call: Site) -> Outlook:
    here = place_in(frame).site
    head = loop.test if isinstance(loop, ast.While) else loop.iter
    site = places.of_node(head, here.file, here.function)
    read = Read(name, site, Effect.FEEDS, name, call, after_back_edge=True)
    again = f"the loop at {place(site)} runs its module again"
    return Outlook(Reading(name, read, frame, again=True), comes=False, conditions=(again,))

"""Reports checkpoints whose second run differs: before torch does, after its error, or if torch
says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from gradscope.collect.backward import Evidence
from gradscope.collect.calls import Call
from gradscope.collect.checkpoints import Divergence, Saved
from gradscope.collect.generations import this_thread
from gradscope.collect.observers import Observer
from gradscope.collect.state import State
from gradscope.model import BackwardCall, Finding
from gradscope.program.sites import USER, Place, owner_of, site_of
from gradscope.program.tensors import describe, labelled
from gradscope.program.variables import local_variables
from gradscope.rules import gs601
from gradscope.torch_private import CHECKPOINT_FILE, REENTRANT_BACKWARD, run_by_checkpoint

_META = r"\{'shape': torch\.Size\(\[(.*?)\]\), 'dtype': torch\.(\w+)"
_OTHERWISE = re.compile(rf"position (\d+):\s+saved metadata: {_META}.*\s+recomputed .*?{_META}")
_FEWER = re.compile(r"during recomputation: (\d+)")


class CheckpointMismatch(Observer):
    """Announces GS601 if both runs were inspected."""

    def __init__(self, watch: State) -> None:
        self._watch = watch

    def recomputed(self, difference: Divergence) -> Iterator[Finding]:
        """Tell it before torch does."""
        call = self._watch.call
        if call is not None:
            found = gs601.finding(_facts(difference, call.record))
            call.findings = (*call.findings, found)
            yield found

    def after_call(self, call: Call, frame: FrameType | None) -> Iterator[Finding]:
        """Tell what torch does not."""
        recomputing = self._watch.saving.recomputing
        found, recomputing.silent = recomputing.silent, []
        yield from (gs601.finding(_facts(difference, call.record)) for difference in found)


def _facts(difference: Divergence, call: BackwardCall) -> gs601.Recomputed:
    first = difference.first
    return gs601.Recomputed(
        *(call, site_of(first.place), _saved(difference.then), _saved(difference.now)),
        *(difference.kind, first.drawn, first.preserves, difference.changed),
        is_silent=difference.is_silent,
        is_reentrant=difference.is_reentrant,
        elsewhere=first.thread != this_thread.number,
    )


def _saved(saved: Saved | None) -> gs601.Operand | None:
    return saved and gs601.Operand(site_of(saved.place), saved.module, saved.label)


def explain(
    evidence: Evidence, error: BaseException, way: Sequence[tuple[FrameType, Place]]
) -> Finding | None:
    """Return the finding for an error that came out of a checkpoint, by the frames on its way, the
    innermost first; None of other errors.
    """
    place: Place | None = None
    for frame, at in way:
        if frame.f_code is REENTRANT_BACKWARD:
            return _of_output(evidence, dict(local_variables(frame)))
        if frame.f_code.co_filename == CHECKPOINT_FILE:
            checkpoint = dict(local_variables(frame)).get("frame")
            if checkpoint is not None:
                return _of_checkpoint(evidence, checkpoint, str(error), place)
        elif place is None and owner_of(frame.f_code) == USER:
            place = at
    return None


def _of_checkpoint(evidence: Evidence, checkpoint: Any, text: str, place: Place | None) -> Finding:
    """Return what is known of a non-reentrant checkpoint; ``place`` is the last of its run."""
    call = evidence.call.record
    own, first = evidence.state.saving.recomputing.first_of(checkpoint)
    facts = gs601.Recomputed(call, preserves=run_by_checkpoint(checkpoint)[1])
    if own is not None:
        facts = _facts(own.difference or Divergence(own), call)
    elif first is not None:
        facts = facts._replace(checkpoint=site_of(first.place))
    if facts.then is None and facts.now is None:
        otherwise, fewer = _OTHERWISE.search(text), _FEWER.search(text)
        at = otherwise or fewer
        known = () if first is None or at is None else first.saved[int(at[1]) :]
        then = next(map(_saved, known), None) or gs601.Operand()
        if otherwise is not None:
            labels = (labelled(*otherwise.group(*which)) for which in ((2, 3), (4, 5)))
            then, now = (then._replace(label=label) for label in labels)
            facts = facts._replace(then=then, now=now)
        elif fewer is not None:
            facts = facts._replace(then=then)
        elif place is not None:
            facts = facts._replace(now=gs601.Operand(place.site))
    return gs601.finding(facts._replace(has_raised=True))


def _of_output(evidence: Evidence, own: dict[str, Any]) -> Finding:
    """Return the finding for a reentrant checkpoint, by the variables of its backward."""
    call, ctx = evidence.call.record, own["ctx"]
    known = evidence.state.saving.recomputing.reentrant(ctx)
    facts = gs601.Recomputed(call, preserves=ctx.preserve_rng_state, is_reentrant=True)
    facts = facts if known is None else _facts(known, call)
    labels = (map(describe, pair) for pair in zip(own["args"], own["outputs"], strict=False))
    both = next(((then, now) for then, now in labels if then != now), ("", ""))
    then, now = (gs601.Operand(label=label) for label in both)
    return gs601.finding(facts._replace(then=then, now=now, has_raised=True))

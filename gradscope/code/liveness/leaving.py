"""Finds the names under which an object is still held when a function returns."""

from __future__ import annotations

from collections.abc import Collection
from types import CodeType

from gradscope.code.liveness.callees import Resolve
from gradscope.code.liveness.flow import flow_of
from gradscope.code.liveness.loops import Loops
from gradscope.code.liveness.notes import Notes
from gradscope.code.liveness.reads import RESULT, starts_after
from gradscope.code.liveness.tracking import Tracker
from gradscope.code.liveness.values import Kind, Mark, State, Value


class _Leaver(Tracker):
    """A tracker that notes only returns that no exception led to."""

    def _leave(self, state: State) -> None:
        if not self.phase.on_exception:
            super()._leave(state)

    def gave(self, value: Value, *, awaiting: bool = False) -> None:
        """Hand the marks to the caller."""
        if not self.phase.on_exception:
            super().gave(value, awaiting=awaiting)


def left_after(
    code: CodeType,
    lasti: int,
    names: Collection[str],
    resolve: Resolve | None = None,
    loops: Loops | None = None,
) -> dict[str, frozenset[str]]:
    """Return for each name the paths under which the object, or something built on it, is held when
    the function returns.

    RESULT is among them if the function returns it. The arguments are those of ``all_reads``.
    """
    flow = flow_of(code)
    index = flow.index(lasti)
    env = {name: frozenset((Mark(name, Kind.SAME, -1),)) for name in names if name != RESULT}
    tracker = _Leaver(code, Notes(), resolve)
    tracker.loops_at_hand = loops
    starts = [
        start
        for start in starts_after(tracker, index, env, names, loops)
        if not start[0].on_exception
    ]
    tracker.follow(starts, flow.loops_around(index))
    held = tracker.left.env if tracker.left is not None else {}
    found: dict[str, set[str]] = {}
    for path, marks in held.items():
        for mark in marks:
            found.setdefault(mark.name, set()).add(path)
    for mark in tracker.returned:
        found.setdefault(mark.name, set()).add(RESULT)
    return {name: frozenset(paths) for name, paths in found.items()}

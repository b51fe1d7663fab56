"""Goes on with asyncio's event loop: its own Python code is read in the place of that in C."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import types
from asyncio import futures, tasks
from collections.abc import Iterator, Sequence
from contextvars import Context
from types import FrameType
from typing import Any, Final

from gradscope.program.ahead import values as v
from gradscope.program.containers import class_bases, class_namespace, is_a
from gradscope.program.variables import local_variables

FUTURE, TASK = vars(futures)["_PyFuture"], vars(tasks)["_PyTask"]
TWINS: Final[dict[int, Any]] = {id(futures.Future): FUTURE, id(tasks.Task): TASK}
"""Classes of C that are there in Python as well, which is read in their place."""
FUTURES = futures.Future

STEP = asyncio.Handle._run.__code__
_UNTIL_COMPLETE = asyncio.BaseEventLoop.run_until_complete.__code__


def future_of(value: Any) -> Any:
    """Return the future or task that an object of asyncio's own in C is for."""
    return next(each for each in gc.get_referents(value) if is_a(each, FUTURES))


def fields_of(future: Any) -> Iterator[tuple[str, Any]]:
    """Yield what asyncio's own future or task holds, as one written in Python has it."""
    yield "_context", v.Instance(Context)
    spaces = (class_namespace(base) for base in class_bases(type(future)) if id(base) in TWINS)
    pairs = (pair for space in spaces for pair in space.items())
    names = {name for name, each in pairs if type(each) is types.GetSetDescriptorType}
    for name in {*names, "_children", "_cancel_requested"}:  # one of gather shows no __dict__
        with contextlib.suppress(AttributeError):
            found = object.__getattribute__(future, name)
            yield name, v.OwnList(found or ()) if name == "_callbacks" else found


def run_loop(m: Any, frames: Sequence[FrameType], how: str, value: Any) -> Any:
    """Go on with the event loop, whose task has done a step, until what it runs is done."""
    outer = [each for each in frames if each.f_code is _UNTIL_COMPLETE]
    own: Any = dict(local_variables(outer[0])) if outer else v.lost("an unknown event loop")
    loop, main = own["self"], own["future"]
    task = asyncio.current_task(loop)
    if how != "yield":
        ends = FUTURE.set_result if how == "return" else FUTURE.set_exception
        m.call(ends, (task, value), {})
    elif value is None:
        m.method(loop, "call_soon", types.MethodType(TASK._Task__step, task))
    else:
        m.method(value, "add_done_callback", types.MethodType(TASK._Task__wakeup, task))
    while not m.known_truth(m.method(main, "done")):
        ready = m.overlay.to_write(m.attribute(loop, "_ready"))
        if not ready:
            v.lost("an event loop that waits")
        handle = ready.popleft()
        if not m.known_truth(m.attribute(handle, "_cancelled")):
            m.call(m.attribute(handle, "_callback"), tuple(m.attribute(handle, "_args")), {})
    return m.method(main, "result")

"""Keeps Python's collector, a profiler and the line watch's trace from running while gradscope
inspects something, or because of gradscope's objects.
"""

from __future__ import annotations

import _thread
import ctypes
import gc
import sys
from collections.abc import Callable
from functools import partial
from types import FunctionType, MethodType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_OWN = __name__.partition(".")[0] + "."
_gettrace = sys.gettrace  # a watch hides its trace from programs that ask

_this_thread = ctypes.pythonapi.PyThreadState_Get
_this_thread.restype = ctypes.c_void_p
_suspend = ctypes.pythonapi.PyThreadState_EnterTracing
_resume = ctypes.pythonapi.PyThreadState_LeaveTracing
_suspend.argtypes = _resume.argtypes = [ctypes.c_void_p]
_suspend.restype = _resume.restype = None
_IN_PYTHON = (FunctionType, MethodType)


# What torch is asked in a thread of its own takes microseconds, and all probes of facts
# milliseconds. The program waits for longer only if that thread hangs, and then no longer than
# this.
_MOST_SECONDS = 2.0


def apart(work: Callable[[], object]) -> None:
    """Do some work in a new thread, and wait for it for a limited time.

    The new thread has none of the program's modes and hooks, and numbers its nodes by itself, so
    the work is not seen. It must not need an import that this thread is in the middle of.
    """
    done = _thread.allocate_lock()

    def run() -> None:
        try:
            work()
        finally:
            done.release()

    done.acquire()
    _thread.start_new_thread(run, ())
    done.acquire(timeout=_MOST_SECONDS)


class GCPaused:
    """Disables the garbage collector for a block; leaves it disabled if the program has disabled
    it.

    Our work makes many objects and no garbage. Without this it would start collections at which the
    program's garbage dies sooner, and in our time. It is a class and not a generator, because it is
    used at every backward call.
    """

    _collects = False

    def __enter__(self) -> None:
        self._collects = gc.isenabled()
        try:
            gc.disable()
        except BaseException:  # a signal handler raised right after the collector was disabled
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        if self._collects:
            gc.enable()


class Allowance:
    """Delays the garbage collector until ``end``, as if that many ``objects`` had not been made.

    Torch keeps a Python object for each node that we have read, as long as the node lives.
    Thresholds that the program sets meanwhile stay as it sets them.
    """

    _before: tuple[int, int, int] | None = None

    def __init__(self, objects: int) -> None:
        first, *others = before = gc.get_threshold()
        if not first:
            return
        self._ours = (first + objects, *others)
        self._before = before
        gc.set_threshold(*self._ours)

    def end(self) -> None:
        """Put the program's thresholds back."""
        before, self._before = self._before, None
        if before is not None and gc.get_threshold() == self._ours:
            gc.set_threshold(*before)


def unprofiled(work: Callable[P, T]) -> Callable[P, T]:
    """Return a function that does ``work`` without a profiler written in C seeing it.

    Torch's profiler keeps each call that it sees: gigabytes for one finding. A profile function in
    Python is not suspended, because gradscope's own guards what it reads of the program
    (``slots``).
    """
    profile = sys.getprofile()
    return work if profile is None or isinstance(profile, _IN_PYTHON) else partial(unseen, work)


def unseen(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``work`` with this thread's profiler suspended. The profiler still sees this call and its
    return, so that its call depth stays balanced.
    """
    thread = _this_thread()
    _suspend(thread)
    try:
        return work(*args, **kwargs)
    finally:
        _resume(thread)


class TracePaused:
    """Suspends the line watch's trace in this thread for a block, or it would see gradscope's
    calls.

    It is a class and not a generator: a generator that an interruption leaves behind would restore
    the trace when it is destroyed, long after the watch has ended.
    """

    _trace: Any = None

    def __enter__(self) -> None:
        trace = _gettrace()
        if str(getattr(trace, "__module__", "")).startswith(_OWN):
            sys.settrace(None)
            self._trace = trace

    def __exit__(self, *_: object) -> None:
        # A destructor that ran meanwhile may have ended the trace.
        if self._trace is not None and self._trace.__self__.is_on:
            sys.settrace(self._trace)

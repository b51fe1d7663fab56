"""Prints, at a signal, what the program is doing and which graphs it holds."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
import traceback
from _thread import start_new_thread
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

from gradscope.formatting import counted, nbytes

# Graphs, and holders of each, that are printed: those of a leak are alike.
_MOST_GRAPHS, _MOST_HOLDERS = 10, 3
# Nodes that are counted while the program waits, at about a microsecond each.
_MOST_NODES = 100_000
_RUNS_PROGRAMS = str(Path(__file__).with_name("runner.py"))
_OWN = os.path.join(Path(__file__).parents[1], "")


def answer(number: int) -> None:
    """Print a dump to stderr whenever this process gets a signal, until it has come to its end.

    What this needs is imported when the signal comes, as it needs torch.
    """

    def tell(_: int, frame: FrameType | None) -> None:
        try:
            told = _dump(frame) if _has_torch() else f"{_stack(frame)}torch has not been imported"
        except ImportError:
            told = ""  # gradscope itself is being imported
        except Exception as failure:
            told = f"gradscope: no dump ({type(failure).__name__}: {failure})"
        if not told:
            start_new_thread(ask_again, ())
            return
        with suppress(OSError):  # not by sys.stderr, as the program may be printing
            os.write(2, f"{told}\n".encode(errors="backslashreplace"))

    def ask_again() -> None:
        time.sleep(0.05)
        if signal.getsignal(number) is tell:
            os.kill(os.getpid(), number)

    def leave() -> None:
        if signal.getsignal(number) is tell:  # else what comes later would kill it
            signal.signal(number, signal.SIG_IGN)

    atexit.register(leave)  # before the program's own, and so called after them
    signal.signal(number, tell)


def _has_torch() -> bool:
    """Return whether the program has imported torch, which nothing here may do first."""
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return not getattr(spec, "_initializing", spec is None)


def _stack(frame: FrameType | None) -> str:
    """Return where the program stands: without what runs it, or lies between it and torch."""
    stack = traceback.extract_stack(frame)
    first = max((i for i, each in enumerate(stack) if each.filename == _RUNS_PROGRAMS), default=0)
    shown = [each for each in stack[first:] if not each.filename.startswith(_OWN)]
    return "".join(traceback.format_list(shown))


def _dump(frame: FrameType | None) -> str:
    """Return the stacks of all threads, the backward calls that run, and the graphs that live; this
    thread stands in ``frame``.

    The report of a watch says when it was asked, and what it did and held then. Return nothing
    amid work of gradscope's, which would find itself.
    """
    if _is_own(frame):
        return ""
    from gradscope.api.watch import current

    calls, graphs = [*_calls()], [*_graphs()]
    if (session := current()) is not None:
        after = session.state.elapsed()
        session.state.notes.add(f"asked after {after:.0f} s: {'; '.join([*calls, graphs[0]])}")
    return "\n".join([*_threads(frame), *calls, *graphs])


def _is_own(frame: FrameType | None) -> bool:
    """Return whether code of gradscope's runs, not only below what runs."""
    from gradscope.program.sites import ENGINE, USER, owner_of

    while frame is not None and owner_of(frame.f_code) not in (USER, ENGINE):
        if frame.f_code.co_filename.startswith(_OWN):
            return frame.f_code.co_filename != _RUNS_PROGRAMS  # it waits for threads
        frame = frame.f_back
    return False


def _threads(own: FrameType | None) -> Iterator[str]:
    from gradscope.program.variables import frames_of_threads

    frames = {**frames_of_threads(), threading.get_ident(): own}
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in frames.items():
        if frame is not None and frame.f_code.co_filename == __file__:
            continue  # it is about to ask again
        yield f"thread {names.get(ident, ident)}"
        yield _stack(frame)


def _calls() -> Iterator[str]:
    from gradscope.api.watch import current
    from gradscope.torch_private import current_node

    session = current()
    if session is None:
        return
    for call in tuple(session.state.running):
        at = f" at {call.record.site.place}" if call.record.site else ""
        seconds = session.state.elapsed() - call.started
        within = f", now {node.name()}" if (node := current_node()) is not None else ""
        yield f"backward call {call.number:,}{at} has run for {seconds:.1f} s{within}"
    yield f"backward calls so far: {session.state.calls:,}"


def _graphs() -> Iterator[str]:
    """Yield a line for each graph that lives, the one built last first, and who holds it."""
    from gradscope.api.graphs import holders, snapshot
    from gradscope.api.watch import room
    from gradscope.collect.walk import Walker
    from gradscope.program.reach import tensors_with_graph
    from gradscope.program.tensors import describe, held_node

    walker = Walker(room(_MOST_NODES))
    met: set[Any] = set()
    tensors = [(node, t) for t in tensors_with_graph() if (node := held_node(t)) is not None]
    tensors.sort(key=lambda pair: pair[0]._sequence_nr(), reverse=True)
    roots = []
    for node, tensor in tensors:
        if node not in met:
            met.update(walker.walk([node], enter=lambda node: node not in met))
            roots.append(tensor)
    yield f"{counted(len(roots), 'backward graph')} alive, of {counted(len(met), 'node')}"
    for at in range(min(len(roots), _MOST_GRAPHS)):  # an iterator over them would be a holder
        graph = snapshot(roots[at])
        nodes, held = counted(len(graph.nodes), "node"), nbytes(graph.saved_bytes)
        yield f"  {graph.nodes[0].name} {describe(roots[at])}: {nodes}, {held} saved"
        theirs = (one for one in holders(roots[at]) if getattr(one.site, "file", "") != __file__)
        for holder in islice(theirs, _MOST_HOLDERS):
            yield f"    {holder}"
    if len(roots) > _MOST_GRAPHS:
        yield f"  and {len(roots) - _MOST_GRAPHS:,} more"

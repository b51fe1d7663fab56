"""Numbers threads, so that one is never taken for another that has ended.

What Python calls a thread's identity goes to a new thread as soon as the old one is over. Graphs
live longer: their nodes are counted in each thread from zero.
"""

from __future__ import annotations

import itertools
import threading

OTHER = 2**40
"""A node's number is torch's sequence number, and so many more for each thread before its own: so
it is no other node's. What the watch's own thread builds has torch's number as it is.
"""

_numbers = itertools.count(1)


class _ThisThread(threading.local):
    """What each thread finds here is its own; it is made when the thread first looks."""

    def __init__(self) -> None:
        self.number = next(_numbers)


this_thread = _ThisThread()
"""``this_thread.number`` is another one in each thread of the process."""


def name_of_thread() -> str | None:
    """Return this thread's name; None of one that Python has not started, and so does not know.

    ``threading.current_thread()`` would enter that one among the program's, for good.
    """
    here = threading.get_ident()
    return next((thread.name for thread in threading.enumerate() if thread.ident == here), None)

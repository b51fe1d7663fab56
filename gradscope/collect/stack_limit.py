"""Makes room on the stack for the destruction of deep graphs that were looked at."""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack

if sys.platform == "linux":
    import resource


class StackLimit:
    """Room on the main thread's stack for the destruction of deep graphs that were looked at.

    torch destroys a node that was ever seen from Python by recursion, with about 200 bytes of C
    stack a node (measured with torch 2.13: a chain of 40,000 nodes overflows 8 MiB). On Linux the
    main thread's stack grows up to the soft limit in force at the time, so raising that limit makes
    room; elsewhere only a smaller number of nodes may be touched.
    """

    BYTES_PER_NODE = 320
    LARGEST = 96 << 20  # Linux keeps at least 128 MiB of address space free below the stack
    OTHER_THREAD_NODES = 8_000 if sys.platform == "linux" else 1_000

    def __init__(self) -> None:
        self._raised = ExitStack()

    def room_for(self, nodes: int) -> int:
        """Return how many nodes may be touched in this thread, raising the limit if ``nodes`` needs
        it.
        """
        if sys.platform != "linux":
            return self.OTHER_THREAD_NODES
        if threading.get_ident() != threading.main_thread().ident:
            return self.OTHER_THREAD_NODES
        soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
        if soft == resource.RLIM_INFINITY:
            return self.LARGEST // self.BYTES_PER_NODE
        unlimited = hard in (-1, resource.RLIM_INFINITY)
        raised = self.LARGEST if unlimited else min(hard, self.LARGEST)
        if nodes * self.BYTES_PER_NODE > soft and soft < raised:
            resource.setrlimit(resource.RLIMIT_STACK, (raised, hard))
            self._raised.callback(resource.setrlimit, resource.RLIMIT_STACK, (soft, hard))
            soft = raised
        return soft // self.BYTES_PER_NODE

    def keep(self) -> None:
        """Leave the limit as it is now: nodes were touched of which nobody knows when they go."""
        self._raised.pop_all()

    def restore(self) -> None:
        """Put the limit back; only safe once the deep graphs are gone."""
        self._raised.close()

"""Is interrupted while it works: by a signal that it sends to itself."""

import atexit
import os
import signal
import sys
import time

atexit.register(print, "exit handler")


def work() -> None:
    try:
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
        time.sleep(10)
    finally:
        print("cleaned up", flush=True)


print("working", flush=True)
work()

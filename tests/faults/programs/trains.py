"""Trains for a long time, and says after each backward call how many there were and what time it is."""

import ctypes
import os
import signal
import sys
import time

import torch


def hang() -> None:
    """Hang in the next backward call."""
    weight.register_hook(lambda grad: wait())


def wait() -> None:
    print("waits", flush=True)
    time.sleep(600)


ENDS = {
    "os._exit": lambda: os._exit(3),
    "abort": os.abort,
    "a segmentation fault": lambda: ctypes.string_at(0),
    "exec": lambda: os.execv(sys.executable, [sys.executable, "-c", "raise SystemExit(4)"]),
    "pause": wait,
    "hang": hang,
}
what = sys.argv[1]
if what == "own handler":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(5))
weight = torch.ones(8, 8, requires_grad=True)
x = torch.ones(2, 8)
for number in range(1, 100_000):
    (x @ weight).tanh().pow(2).sum().backward()
    weight.grad = None
    print(number, time.monotonic(), flush=True)
    if what in ENDS and number == int(sys.argv[2]):
        ENDS[what]()
    if what == "remove" and number == 5:
        import shutil

        shutil.rmtree(sys.argv[2])
    if what in ("remove", "stop") and number == 300:
        print("done")
        break

"""Trains for a long time, and says after each backward call how many there were and what time it is."""

import os
import signal
import sys
import time

import torch

what = sys.argv[1]
if what == "own handler":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(5))
weight = torch.ones(8, 8, requires_grad=True)
x = torch.ones(2, 8)
for number in range(1, 100_000):
    (x @ weight).tanh().pow(2).sum().backward()
    weight.grad = None
    print(number, time.monotonic(), flush=True)
    if what == "os._exit" and number == int(sys.argv[2]):
        os._exit(3)
    if what == "remove" and number == 5:
        import shutil

        shutil.rmtree(sys.argv[2])
    if what in ("remove", "stop") and number == 300:
        print("done")
        break

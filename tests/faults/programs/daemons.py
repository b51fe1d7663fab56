"""Daemon threads run backward while the interpreter ends"""

import threading

import torch

started = threading.Barrier(3)


def work():
    x = torch.ones(3, requires_grad=True)
    started.wait()
    while True:
        (x * x).exp().sum().backward()


for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
started.wait()
x = torch.ones(3, requires_grad=True)
for _ in range(10):
    (x * x).sum().backward()
print(x.grad)

"""Forwards and backwards in threads: each thread has its own hooks, sequence numbers and gradients."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from _show import show, small

shared = small(4, 4, seed=9)
results = {}


def work(number):
    w = small(4, 4, seed=number).requires_grad_()
    for _ in range(5):
        h = (w @ shared).tanh()
        h.pow(2).sum().backward()
    try:
        h.pow(2).sum().backward()
    except RuntimeError as error:
        return w.grad, str(error)[:50]


def run(number):
    results[number] = work(number)


workers = [threading.Thread(target=run, args=(number,)) for number in range(4)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
with ThreadPoolExecutor(2) as pool:
    results.update(enumerate(pool.map(work, range(4, 10)), start=4))
for number in sorted(results):
    show(results[number][1], results[number][0])
leaf = small(3).requires_grad_()
out = leaf.exp()
thread = threading.Thread(target=lambda: out.sum().backward())
thread.start()
thread.join()
show("built here, run there", leaf.grad)
with torch.no_grad():
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.is_grad_enabled()))
    thread.start()
    thread.join()
print(seen)


def failing():
    raise ValueError("in a thread")


threading.excepthook = lambda args: print("excepthook", args.exc_type.__name__, args.exc_value)
thread = threading.Thread(target=failing)
thread.start()
thread.join()

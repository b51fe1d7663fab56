"""Tensors with a graph that are copied, or sent to another process: torch refuses, in tracebacks of its own."""

import copy
import gc
import traceback
import weakref
from multiprocessing.reduction import ForkingPickler

import torch
from _show import small
from torch import multiprocessing, nn

layer = nn.Linear(3, 3)
result = layer(small(3))
for send in (ForkingPickler.dumps, multiprocessing.get_context("fork").SimpleQueue().put):
    try:
        send({"result": [result]})
    except RuntimeError:
        print(traceback.format_exc())
print(len(ForkingPickler.dumps([result.detach(), layer.weight])) > 0)
queue = multiprocessing.get_context("fork").Queue()
queue.put(result)
queue.close()
queue.join_thread()


def fails():
    kept = layer(small(3)).exp()
    try:
        copy.deepcopy({"kept": kept})
    except RuntimeError as error:
        print(len(traceback.extract_tb(error.__traceback__)))
    return weakref.ref(kept)


gone = fails()
gc.collect()
print(gone() is None, torch.equal(copy.deepcopy(layer).weight, layer.weight))
layer.last = result
copy.deepcopy(nn.Sequential(layer))

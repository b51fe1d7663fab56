"""Anomaly mode: its warning with the forward's traceback, and what the nodes carry then."""

import warnings

import torch
from _show import small

x = small(3).requires_grad_()
with torch.autograd.detect_anomaly(check_nan=True):
    y = (x - x).sqrt() * 0
    print(sorted(y.grad_fn.metadata))
    try:
        y.sum().backward()
    except RuntimeError as error:
        print(error)
with torch.autograd.set_detect_anomaly(True):
    h = x * 1
    y = h.exp()
    y.add_(1)
    try:
        y.sum().backward()
    except RuntimeError as error:
        print(error)
with warnings.catch_warnings(record=True) as seen, torch.autograd.detect_anomaly():
    y = x.exp()
    y.sum().backward()
    try:
        y.sum().backward()
    except RuntimeError as error:
        print(error)
print(len(seen), [w.category.__name__ for w in seen])
print(torch.is_anomaly_enabled())

"""Checkpoints whose second run differs: errors with their tracebacks, warnings, gradients and random numbers."""

import gc
import random
import traceback
import warnings
import weakref

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

torch.manual_seed(0)
random.seed(0)
net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Tanh())
runs = []


def rows(x):
    warnings.warn(f"run {len(runs)}", stacklevel=2)
    runs.append(torch.is_grad_enabled())
    return net(x[torch.rand(len(x)) < 0.5]).exp()


def more(x):
    runs.append(0)
    return x.exp().sin() if len(runs) % 2 else x.sin()


def python_numbers(x):
    return x.tanh() if random.random() < 0.5 else net(x).exp()


for function in (rows, more, python_numbers, net):
    for reentrant in (True, False):
        for early in (True, False):
            x = torch.randn(8, 4, requires_grad=True)
            with set_checkpoint_early_stop(early):
                y = checkpoint(function, x, use_reentrant=reentrant, preserve_rng_state=False)
            try:
                y.sum().backward()
            except RuntimeError:
                traceback.print_exc()
            alive = weakref.ref(y)
            del y
            gc.collect()
            print(
                getattr(function, "__name__", "net"),
                reentrant,
                early,
                x.grad,
                torch.rand(1),
                random.random(),
                alive(),
            )
            print(vars(torch.utils.checkpoint.checkpoint).keys(), len(runs))

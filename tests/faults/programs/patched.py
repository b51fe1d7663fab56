"""The program replaces torch.autograd.backward and the engine's entry while it is watched"""

import torch

original, engine = torch.autograd.backward, torch.autograd.graph._engine_run_backward
calls = []


def counted(*args, **kwargs):
    calls.append("backward")
    return original(*args, **kwargs)


def entered(*args, **kwargs):
    calls.append("engine")
    return engine(*args, **kwargs)


torch.autograd.backward = counted
torch.autograd.graph._engine_run_backward = torch.autograd._engine_run_backward = entered
x = torch.ones(3, requires_grad=True)
y = (x * x).sum()
y.backward()
try:
    y.backward()
except RuntimeError as error:
    print(str(error)[:40])
print(calls, x.grad, torch.autograd.backward is counted)
print(torch.autograd.graph._engine_run_backward is entered)

"""TorchDispatchMode and TorchFunctionMode: loggers that print every call they see."""

import torch
from _show import show, small
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode


class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        print("dispatch", func)
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        print("function", getattr(func, "__qualname__", func))
        return func(*args, **(kwargs or {}))


x = small(3, 3).requires_grad_()
with Dispatch():
    loss = (x @ x).softmax(0).square().sum()
    loss.backward()
with Dispatch():  # the code that follows is read ahead at the first call
    lstm = torch.nn.LSTM(3, 3)
    for _ in range(2):
        lstm(x.unsqueeze(0))[0].sum().backward()
with Functions():
    loss = (x * x).exp().sum()
    loss.backward()
    torch.autograd.grad((x * 2).prod(), x)
with Functions(), Dispatch():
    y = x.sin().requires_grad_()
    torch.autograd.backward([y.sum()], inputs=[x])
    x.grad.zero_()
show("grad", x.grad)
with FlopCounterMode(display=False) as counter:
    (x @ x).sum().backward()
print(counter.get_total_flops())

"""A user who replaces parts of torch: what is replaced is called, and put back as it was."""

import torch
from _show import show, small

original = torch.Tensor.backward
counted = 0


def backward(self, *args, **kwargs):
    global counted
    counted += 1
    return original(self, *args, **kwargs)


x = small(3).requires_grad_()
torch.Tensor.backward = backward
x.exp().sum().backward()
torch.Tensor.backward = original
x.exp().sum().backward()
print(counted, torch.Tensor.backward is original)
step = torch.optim.SGD.step
torch.optim.SGD.step = lambda self, *a: print("step") or step(self, *a)
torch.optim.SGD([x], lr=0.1).step()
torch.optim.SGD.step = step
call = torch.nn.Module.__call__
torch.nn.Module.__call__ = lambda self, *a, **k: (
    print("call", type(self).__name__) or call(self, *a, **k)
)
torch.nn.Tanh()(x).sum().backward()
torch.nn.Module.__call__ = call
torch.set_default_dtype(torch.float64)
y = torch.ones(2, requires_grad=True)
(y * 0.5).exp().sum().backward()
show("grads", x.grad, y.grad)
print(torch.get_default_dtype(), torch.utils.checkpoint.checkpoint.__name__)

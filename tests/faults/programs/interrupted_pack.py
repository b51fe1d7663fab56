"""The program's own pack and unpack hooks raise KeyboardInterrupt"""

import torch


def interrupt(tensor):
    raise KeyboardInterrupt("in a hook")


x = torch.ones(3, requires_grad=True)
for pair in ((interrupt, lambda t: t), (lambda t: t, interrupt)):
    try:
        with torch.autograd.graph.saved_tensors_hooks(*pair):
            y = x * x
        y.sum().backward()
    except KeyboardInterrupt as error:
        print("caught", error, x.grad)
(x * x).sum().backward()
print(x.grad)
with torch.autograd.graph.saved_tensors_hooks(interrupt, lambda t: t):
    x * x

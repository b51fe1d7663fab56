"""The program calls sys.exit in a tensor hook, inside the backward call"""

import sys

import torch

x = torch.ones(3, requires_grad=True)
y = x * x
y.register_hook(lambda gradient: sys.exit(7))
try:
    y.sum().backward()
finally:
    print("left by", sys.exc_info()[0].__name__, x.grad)

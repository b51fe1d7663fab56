"""The program meets the recursion limit, in its forward pass and inside a backward call"""

import torch

x = torch.ones(3, requires_grad=True)


def down(depth):
    return down(depth + 1) * x


for _ in range(3):
    try:
        down(0).sum().backward()
    except RecursionError as error:
        print(str(error)[:36])
    y = x * x
    y.register_hook(down)
    try:
        y.sum().backward()
    except RecursionError as error:
        print(str(error)[:36])
(x * x).sum().backward()
print(x.grad)

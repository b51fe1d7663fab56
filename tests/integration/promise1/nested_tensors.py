"""Nested tensors have no shape to ask for: their errors and gradients are torch's own."""

import warnings

import torch
from _show import show

warnings.simplefilter("ignore")  # torch says that nested tensors are a prototype


def nested(**options):
    return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], **options)


def total(value):
    return torch.nested.to_padded_tensor(value, 0.0).sum()


a = nested(requires_grad=True)
b = nested()
product = a * b
b.add_(1)
try:
    total(product).backward()
except RuntimeError as error:
    print(error)
loss = total(a * a)
loss.backward()
show("grad", torch.nested.to_padded_tensor(a.grad, 0.0))
try:
    loss.backward()
except RuntimeError as error:
    print(error)

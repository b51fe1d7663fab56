"""A generator."""

import torch
torch.manual_seed(0)

def frames(w):
    for _ in range(2):
        y = torch.sigmoid(w)  # created: GS202 GS201
        y *= 2  # warning: GS202 [clone]; modified_by: GS202 GS201
        yield y
w, total = torch.randn(3, requires_grad=True), 0.0
for y in frames(w):
    total = total + y.sum()  # next_read: GS202
total.backward()  # error: GS201 [clone]; failing_node: GS202

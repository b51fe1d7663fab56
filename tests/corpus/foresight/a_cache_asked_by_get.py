"""A dict keeps what is computed for each size, and the sizes come again."""

import torch

w = torch.nn.Parameter(torch.randn(4, 4))
opt = torch.optim.SGD([w], lr=0.1)
basis = {}


def get(n):
    out = basis.get(n)  # next_read: GS102
    if out is None:
        out = basis[n] = torch.matrix_exp(w[:n, :n])  # created: GS102 GS101; held_by: GS102
    return out


for n in [2, 3, 2, 3]:
    loss = (torch.randn(5, n) @ get(n)).pow(2).mean()
    opt.zero_grad()
    loss.backward()  # warning: GS102 [recompute] `basis[2]`; freed_by: GS102 GS101
    # ^ failing_node: GS102; error: GS101 [recompute]
    opt.step()

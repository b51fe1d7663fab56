"""Each step of an adjoint goes back over all earlier ones, with graphs that nobody runs."""

import torch
from torch import nn

torch.manual_seed(0)

h = nn.Parameter(0.1 * torch.randn(12, 12))
opt = torch.optim.SGD([h], lr=0.01)


def adjoint(y, a, steps):
    grads = torch.zeros_like(h)
    y = y.requires_grad_()
    for _ in range(steps):
        fy = torch.tanh(h @ y)
        da, dh = torch.autograd.grad(  # advice: GS303 [other]
            fy, (y, h), a, retain_graph=True, create_graph=True
        )
        grads = grads + 0.05 * dh
        a = a + 0.05 * da
        y = y - 0.05 * fy
    return grads.detach()


for epoch in range(4):
    h.grad = adjoint(torch.randn(12, 1), torch.ones(12, 1), 24)
    opt.step()

"""The losses of a flow, beside the fixed-point steps of its layers."""

import torch
from torch import nn

torch.manual_seed(0)

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, x):
        """The residual step y = x + g(x), and its inverse by fixed-point steps."""
        y = x + 0.3 * self.net(x)
        z = y.detach().requires_grad_()
        for _ in range(6):
            energy = (z + 0.3 * self.net(z) - y.detach()).pow(2).sum()
            (g,) = torch.autograd.grad(energy, z)
            z = (z - 0.5 * g).detach().requires_grad_()
        return y, (y - x).pow(2).sum(1) - z.detach().pow(2).sum(1)


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(8))

    def forward(self, x):
        total, seen = torch.zeros(len(x)), []
        for layer in self.layers:
            x, logdet = layer(x)
            total = total + logdet
            seen.append(x)
        return x, total, seen


flow = Flow()
opt = torch.optim.Adam(flow.parameters())
losses = []
for step in range(12):
    z, logdet, seen = flow(torch.randn(16, 2))
    loss = (z.pow(2).sum(1) - logdet).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss)  # warning: GS302 [item]; held_by: GS302

# trains: loss
# trains: weight: trains optimizer
# trains: bias: trains optimizer
"""Fit a line with an optimizer that calls for gradients itself."""
import torch

torch.manual_seed(0)
weight = torch.zeros(3, requires_grad=True)
bias = torch.zeros((), requires_grad=True)
optimizer = torch.optim.LBFGS([weight, bias], max_iter=4)
x = torch.randn(32, 3)
y = x @ torch.tensor([1.0, -2.0, 0.5]) + 0.3


def closure():
    optimizer.zero_grad()
    loss = (x @ weight + bias - y).square().mean()
    loss.backward()
    return loss


for step in range(4):
    optimizer.step(closure)

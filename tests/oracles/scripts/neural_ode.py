"""An ODE solver by Runge-Kutta steps, with the adjoint method in a custom Function."""

import math

import torch
from torch import nn


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, t, y):
        return self.net(y**3)


def rk4(f, t, h, y):
    k1 = f(t, y)
    k2 = f(t + h / 2, y + h / 2 * k1)
    k3 = f(t + h / 2, y + h / 2 * k2)
    k4 = f(t + h, y + h * k3)
    return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


class Adjoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, f, y, h, steps, *params):
        ctx.f, ctx.h, ctx.steps = f, h, steps
        with torch.no_grad():
            for i in range(steps):
                y = rk4(f, i * h, h, y)
        ctx.save_for_backward(y, *params)
        return y

    @staticmethod
    def backward(ctx, grad_y):
        y, *params = ctx.saved_tensors
        sums = [torch.zeros_like(p) for p in params]
        for i in reversed(range(ctx.steps)):
            with torch.no_grad():
                y = rk4(ctx.f, (i + 1) * ctx.h, -ctx.h, y)
            with torch.enable_grad():
                start = y.detach().requires_grad_(True)
                end = rk4(ctx.f, i * ctx.h, ctx.h, start)
                grad_y, *grads = torch.autograd.grad(end, (start, *params), grad_y)
            sums = [a + b for a, b in zip(sums, grads)]
        return (None, grad_y, None, None, *sums)


field = Field()
optimizer = torch.optim.RMSprop(field.parameters(), lr=1e-3)
angles = torch.linspace(0, math.pi, 12)
true = torch.stack([angles.cos(), angles.sin()], 1) * (1 - angles / 8).unsqueeze(1)
for itr in range(1, 19):
    optimizer.zero_grad()
    if itr % 2:
        pred = Adjoint.apply(field, true[:-1], 0.1, 3, *field.parameters())
    else:
        pred = true[:-1]
        for i in range(3):
            pred = rk4(field, i * 0.1, 0.1, pred)
    loss = (pred - true[1:]).abs().mean()
    loss.backward()
    optimizer.step()
    if itr % 6 == 0:
        with torch.no_grad():
            print("Iter {:04d} | Total Loss {:.6f}".format(itr, loss.item()))

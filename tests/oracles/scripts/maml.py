"""Model-agnostic meta-learning of sine waves: weights stepped by hand with second derivatives."""

import math

import torch
import torch.nn.functional as F

torch.manual_seed(1)
weights = [
    (torch.randn(20, 1) * 0.5).requires_grad_(),
    torch.zeros(20, requires_grad=True),
    (torch.randn(1, 20) * 0.2).requires_grad_(),
    torch.zeros(1, requires_grad=True),
]
meta = torch.optim.Adam(weights, lr=5e-3)


def net(x, w):
    return F.linear(torch.tanh(F.linear(x, w[0], w[1])), w[2], w[3])


def draw_task():
    height, shift = 0.5 + torch.rand(()), math.pi * torch.rand(())
    return lambda x: height * torch.sin(x + shift)


def adapt(task, steps, create_graph=True):
    x = torch.rand(10, 1) * 6 - 3
    fast = weights
    for _ in range(steps):
        grads = torch.autograd.grad(
            F.mse_loss(net(x, fast), task(x)), fast, create_graph=create_graph
        )
        fast = [w - 0.05 * g for w, g in zip(fast, grads)]
    return fast


for epoch in range(10):
    losses = []
    for _ in range(3):
        task = draw_task()
        fast = adapt(task, steps=2)
        x_qry = torch.rand(10, 1) * 6 - 3
        losses.append(F.mse_loss(net(x_qry, fast), task(x_qry)))
    meta_loss = sum(losses) / len(losses)
    meta.zero_grad()
    meta_loss.backward()
    meta.step()
    if epoch % 3 == 2:
        task, x = draw_task(), torch.linspace(-3, 3, 20).unsqueeze(1)
        tuned = [w.detach() for w in adapt(task, steps=4, create_graph=False)]
        print(
            epoch, f"meta {meta_loss.item():.4f}", f"test {F.mse_loss(net(x, tuned), task(x)):.4f}"
        )

"""Inner loop of meta learning."""

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Linear(4, 1)
meta = torch.optim.Adam(net.parameters())
for episode in range(6):
    fast = dict(net.named_parameters())
    path = []
    for inner in range(10):
        loss = torch.func.functional_call(net, fast, (torch.randn(8, 4),)).pow(2).mean()
        grads = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
        fast = {k: v - 0.1 * g for (k, v), g in zip(fast.items(), grads)}
        path.append(loss)
    meta.zero_grad()
    torch.func.functional_call(net, fast, (torch.randn(8, 4),)).pow(2).mean().backward()
    meta.step()

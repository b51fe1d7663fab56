"""Meta-learning with higher: each task starts from the weights, pulled to the last task's."""
# needs: higher
# finds: GS101
# lacks: early: a class is made in the way ahead

import higher
import torch
from torch import nn

torch.manual_seed(0)
network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
outer = torch.optim.Adam(network.parameters(), lr=0.01)
inner = torch.optim.SGD(network.parameters(), lr=0.1)
last = None

for task in range(4):
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    outer.zero_grad()
    with higher.innerloop_ctx(network, inner, copy_initial_weights=False) as (fast, steps):
        for _ in range(2):
            steps.step((fast(x) - y).pow(2).mean())
        loss = (fast(x) - y).pow(2).mean()
        adapted = torch.cat([p.flatten() for p in fast.parameters()])
        if last is not None:
            loss = loss + 0.01 * (adapted - last).pow(2).sum()
        loss.backward()  # head
        last = adapted.detach()  # hazard: last = adapted
    outer.step()
    print(f"task {task}: {loss.item():.6f}")

"""An optimizer of the program's own."""
# gradients: wrong

import torch
from torch import nn
torch.manual_seed(0)

class Descent(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data.add_(p.grad.data, alpha=-group["lr"])  # warning: GS202 [reorder]
                    # ^ modified_by: GS202
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
optimizer = Descent(net.parameters())
first, second = net(torch.randn(2, 4)).mean(), net(torch.randn(2, 4)).pow(2).mean()
# ^ created: GS202
first.backward()
optimizer.step()
second.backward()  # failing_node: GS202; next_read: GS202

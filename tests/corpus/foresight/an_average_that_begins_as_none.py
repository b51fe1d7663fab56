"""An average in a global that begins as None, and is stored by a function."""

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
opt = torch.optim.SGD(net.parameters(), 0.1)
ema = None
def step(x):
    global ema
    out = net(x)  # created: GS102 GS101
    ema = out.mean(0) if ema is None else 0.9 * ema + 0.1 * out.mean(0)  # held_by: GS102; next_read: GS102
    loss = (out - ema).pow(2).mean()
    opt.zero_grad()
    loss.backward()  # warning: GS102 [detach] `ema`; error: GS101 [detach]
    # ^ failing_node: GS102; freed_by: GS102 GS101
    opt.step()
for _ in range(3):
    step(torch.randn(4, 3))

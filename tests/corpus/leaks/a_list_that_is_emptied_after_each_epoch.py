"""A list of losses that is emptied after each epoch, and one that is made anew."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
kept = []
for epoch in range(4):
    losses = []
    for step in range(30):
        loss = net(torch.randn(8, 4)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss)
        kept.append(loss)  # advice: GS302 [item]; held_by: GS302
    mean = torch.stack(losses).mean().item()
    kept.clear()

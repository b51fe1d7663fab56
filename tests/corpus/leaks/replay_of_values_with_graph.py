"""Replay of values with graph: of what is kept, only `obs` is read."""

import torch
from torch import nn
torch.manual_seed(0)

policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
opt = torch.optim.Adam(policy.parameters())
replay = []
for t in range(12):
    obs = torch.randn(1, 4)
    logits = policy(obs)
    value = logits.softmax(-1)
    replay.append((obs, value, 0.0))  # warning: GS302 [detach]; held_by: GS302
    batch = torch.cat([o for o, _, _ in replay[-4:]])
    loss = policy(batch).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()

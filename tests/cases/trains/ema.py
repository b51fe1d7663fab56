# trains: loss
# trains: model: trains optimizer
# trains: average: no_way
"""Train a model, and keep a moving average of it, which requires grad and gets none."""
import copy

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
average = copy.deepcopy(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(8):
    x = torch.randn(16, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for kept, new in zip(average.parameters(), model.parameters(), strict=True):
            kept.lerp_(new, 0.1)

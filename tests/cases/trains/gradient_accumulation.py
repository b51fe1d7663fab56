# trains: aux, loss
# trains: model: trains optimizer; trains optimizer
"""Add the gradients of four small batches and of a penalty, scale them in between, step once."""
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    aux = sum(each.square().sum() for each in model.parameters())
    aux.backward()
    for each in model.parameters():
        each.grad.mul_(1e-3)
    for _ in range(4):
        x = torch.randn(16, 4)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean() / 4
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# raised: IndexError: list index out of range; plain
import torch
from torch import nn

torch.manual_seed(0)
data = [torch.randn(3, 4) for _ in range(4)]
layer = nn.Linear(4, 1)
opt = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range(5):
    opt.zero_grad()
    layer(data[step]).pow(2).mean().backward()
    opt.step()

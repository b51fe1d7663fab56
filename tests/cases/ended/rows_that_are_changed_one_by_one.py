# raised: RuntimeError: Output 0 of Unbind is a view; help: clone
import torch
from torch import nn

torch.manual_seed(0)
layer = nn.Linear(4, 4)
for step in range(3):
    hidden = layer(torch.randn(3, 4))
    for row in hidden.unbind(0):  # note: views
        row += 1.0  # raised
    hidden.pow(2).mean().backward()

# raised: RuntimeError: Inplace update to inference tensor; help: torch.no_grad
import torch
from torch import nn

torch.manual_seed(0)
layer = nn.Linear(4, 4)
with torch.inference_mode():  # note: inference mode
    state = layer(torch.zeros(2, 4))
for step in range(3):
    loss = layer(torch.randn(2, 4)).pow(2).mean()
    loss.backward()
    state.mul_(0.9)  # raised

"""L-BFGS calls a closure again and again, which must compute all of the loss anew."""
# needs:
# finds: GS102 GS101 `features`

import torch
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(16, 3), torch.randn(16, 1)
encoder, head = nn.Sequential(nn.Linear(3, 8), nn.Tanh()), nn.Linear(8, 1)
optimizer = torch.optim.LBFGS([*encoder.parameters(), *head.parameters()], lr=0.1, max_iter=4)
features = encoder(x)


def closure():
    inputs = encoder(x)  # hazard: inputs = features
    optimizer.zero_grad()
    loss = (head(inputs) - y).pow(2).mean()
    loss.backward()  # head
    return loss


for step in range(3):
    loss = optimizer.step(closure)
    print(f"step {step}: {loss.item():.6f}")

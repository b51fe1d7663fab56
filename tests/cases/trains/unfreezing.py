# trains: loss
# trains: body: trains optimizer from 16
# trains: head: trains optimizer
"""Train the head alone at first, and after fifteen steps the body as well."""
import torch
from torch import nn

torch.manual_seed(0)
body, head = nn.Linear(4, 8), nn.Linear(8, 1)
body.requires_grad_(False)
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.05)
for step in range(40):
    if step == 15:
        body.requires_grad_(True)
    loss = head(body(torch.randn(16, 4)).relu()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# trains: first_loss, second_loss
# trains: trunk: trains optimizer; trains optimizer
# trains: first: trains optimizer; no_way
# trains: second: no_way; trains optimizer
"""Two tasks take turns at one trunk, each with a head of its own."""
import torch
from torch import nn

torch.manual_seed(0)
trunk, first, second = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 2)
optimizer = torch.optim.Adam([*trunk.parameters(), *first.parameters(), *second.parameters()])
for step in range(12):
    features = trunk(torch.randn(16, 4)).relu()
    optimizer.zero_grad()
    if step % 2:
        second_loss = second(features).square().mean()
        second_loss.backward()
    else:
        first_loss = (first(features) - 1).square().mean()
        first_loss.backward()
    optimizer.step()

"""A compiled network that gives two heads one trunk."""
# needs:
# finds: GS102 GS101 `kind`

import torch
from torch import nn

torch.manual_seed(0)
trunk = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
first, second = nn.Linear(8, 1), nn.Linear(8, 3)
compiled = torch.compile(trunk, backend="aot_eager")
optimizer = torch.optim.SGD(
    [*trunk.parameters(), *first.parameters(), *second.parameters()], lr=0.1
)

for step in range(4):
    x = torch.randn(8, 4)
    features = compiled(x)
    value = first(features).pow(2).mean()
    kind = nn.functional.cross_entropy(second(features), torch.randint(3, (8,)))
    optimizer.zero_grad()
    value.backward(retain_graph=True)  # hazard: value.backward()  # head: GS102
    kind.backward()  # head: GS101
    optimizer.step()
    print(f"step {step}: {value.item():.6f} {kind.item():.6f}")

"""Automatic mixed precision on the CPU, with a gradient scaler and accumulated gradients."""
# needs:
# finds: GS102 GS101 `total`

import torch
from torch import nn

torch.manual_seed(0)
network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)

total = 0.0
for step in range(8):
    x, y = torch.randn(8, 4), torch.randn(8, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(network(x).float(), y) / 2
    total = loss  # hazard: total = total + loss
    scaler.scale(total).backward()  # head
    if step % 2:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    print(f"step {step}: {loss.item():.6f}")

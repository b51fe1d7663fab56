"""Autocast to bfloat16 and a GradScaler on the CPU."""

import torch
from _show import show, small
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
for step in range(6):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(small(4, 8, seed=step))
        loss = out.float().square().mean()
    scaler.scale(loss).backward()
    if step == 3:
        model[0].weight.grad[0, 0] = float("inf")
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    print(step, out.dtype, loss.item().hex(), norm.item(), scaler.get_scale())
show("weights", *model.parameters())

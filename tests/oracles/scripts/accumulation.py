"""Gradient accumulation over micro-batches with a scheduler, clipping, and an average of weights."""

import torch
from torch import nn

ACCUMULATE, STEPS = 4, 8
torch.set_default_dtype(torch.float32)
block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
model = nn.Sequential(nn.Linear(5, 8), block, nn.Flatten(), nn.Linear(48, 2))
decay = [p for p in model.parameters() if p.dim() >= 2]
rest = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest}], lr=2e-3)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
scaler = torch.amp.GradScaler("cpu", enabled=False)
averaged = {name: p.detach().clone() for name, p in model.named_parameters()}


def get_batch():
    x = torch.randn(6, 6, 5)
    return x, (x.mean((1, 2)) > 0).long()


X, Y = get_batch()
for iteration in range(STEPS):
    for micro_step in range(ACCUMULATE):
        with torch.autocast("cpu", enabled=False):
            logits = model(X)
            loss = nn.functional.cross_entropy(logits, Y) / ACCUMULATE
        X, Y = get_batch()  # while the model is busy
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    scheduler.step()
    with torch.no_grad():
        for name, p in model.named_parameters():
            averaged[name].mul_(0.9).add_(p, alpha=0.1)
    if iteration % 4 == 3:
        print(f"iter {iteration}: loss {loss.item() * ACCUMULATE:.4f}, norm {norm:.4f}")

"""Logits and hidden states are kept after the call that has freed all that their graphs saved."""

import torch
from torch import nn

torch.manual_seed(0)

body, head = nn.Linear(64, 128), nn.Linear(128, 10)
opt = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
outputs = []
for step in range(12):
    hidden = body(torch.randn(32, 64))
    logits = head(hidden.tanh())
    loss = logits.logsumexp(1).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    outputs.append({"logits": logits, "hidden": hidden})  # warning: GS302 [detach]; held_by: GS302

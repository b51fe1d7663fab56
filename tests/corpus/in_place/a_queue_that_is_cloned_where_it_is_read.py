"""A queue that is cloned where it is read."""

import torch
from torch import nn
torch.manual_seed(0)

enc, queue = nn.Linear(4, 4), torch.randn(4, 8)
for step in range(3):
    q = enc(torch.randn(2, 4))
    loss = (q @ queue.clone()).logsumexp(1).mean()
    with torch.no_grad():
        queue[:, 2 * step : 2 * step + 2] = q.t()
    loss.backward()

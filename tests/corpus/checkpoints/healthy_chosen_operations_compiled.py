"""A selective checkpoint, and a compiled block in one: healthy."""

from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 8))
compiled = torch.compile(net, backend="aot_eager")
keep = partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])
for step in range(6):
    x = torch.randn(4, 8, requires_grad=True)
    y = checkpoint(net, x, use_reentrant=False, context_fn=keep)
    z = checkpoint(compiled, x, use_reentrant=False)
    (y + z).sum().backward()

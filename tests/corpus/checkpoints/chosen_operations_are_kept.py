"""A selective checkpoint keeps the products; the recomputation has one that the pass had not."""

import random
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

torch.manual_seed(0)
random.seed(2)
layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(6))
keep = partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])


def stack(x):
    for layer in layers:
        if random.random() < 0.5:
            x = torch.tanh(layer(x))  # failing_node: GS601
    return x


for step in range(4):
    x = torch.randn(3, 4, requires_grad=True)
    y = checkpoint(stack, x, use_reentrant=False, context_fn=keep)  # created: GS601
    y.sum().backward()  # error: GS601 [other]

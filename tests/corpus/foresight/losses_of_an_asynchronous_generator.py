"""An asynchronous generator waits for its data, and keeps the state between the losses that it gives."""

import asyncio

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Linear(4, 4)


async def stream():
    for _ in range(3):
        await asyncio.sleep(0)
        yield torch.randn(4)


async def losses():
    h = torch.zeros(4)
    async for x in stream():
        h = torch.tanh(net(x) + h)  # created: GS102 GS102 GS101; held_by: GS102; next_read: GS102
        yield h.pow(2).sum()


async def train():
    async for loss in losses():
        loss.backward()  # warning: GS102 [recompute]; freed_by: GS102 GS101
        # ^ failing_node: GS102; error: GS101 [recompute]


asyncio.run(train())

"""An asynchronous generator runs backward itself, and carries its state on; another one cuts it."""

import asyncio

import torch
from torch import nn
torch.manual_seed(0)

net = nn.Linear(4, 4)


async def values(cut):
    h = torch.zeros(4)
    for _ in range(3):
        await asyncio.sleep(0)
        h = torch.tanh(net(torch.randn(4)) + h)  # created: GS102 GS102 GS101; held_by: GS102
        # ^ next_read: GS102
        loss = h.pow(2).sum()
        loss.backward()  # warning: GS102 [detach]; freed_by: GS102 GS101
        # ^ failing_node: GS102; error: GS101 [detach]
        if cut:
            h = h.detach()
        yield loss.item()


async def train():
    print([value async for value in values(True)])
    async for value in values(False):
        print(value)


asyncio.run(train())

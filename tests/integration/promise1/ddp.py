"""DistributedDataParallel in one process, with its hooks on AccumulateGrad nodes and its forward's own sync."""

import torch
import torch.distributed as dist
from _show import show, small
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
net = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
for step in range(3):
    with net.no_sync() if step == 0 else torch.enable_grad():
        net(small(3, 4, seed=step)).square().sum().backward()
show("grads", *(p.grad for p in net.parameters()))
first, second = net(small(3, 4)), net(small(3, 4, seed=5))
try:
    (first.sum() + second.sum()).backward()
except RuntimeError as error:
    print("modified by an inplace operation" in str(error))


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.heads = nn.Linear(4, 4), nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])

    def forward(self, x):
        h = self.body(x).tanh()
        return [head(h) for head in self.heads]


def twice(pair):
    first, second = pair(small(3, 4))
    first.sum().backward(retain_graph=True)
    second.sum().backward()


def unfinished(pair):
    optimizer = torch.optim.SGD(pair.parameters(), lr=0.1)
    for _ in range(2):
        pair(small(3, 4))[0].sum().backward()
        optimizer.step()


for fail in (twice, unfinished):
    pair = DistributedDataParallel(Heads())
    try:
        fail(pair)
    except RuntimeError as error:
        print(error)
    show("grads", *(p.grad for p in pair.parameters() if p.grad is not None))
dist.destroy_process_group()

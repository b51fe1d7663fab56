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
dist.destroy_process_group()

"""The first work is done while its pool is still being asked for it."""

import sys
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
torch.manual_seed(0)
sys.setswitchinterval(5.0)

net, pool = nn.Linear(4, 4), ThreadPoolExecutor(1)
h = torch.zeros(4)


def backward(loss):
    loss.backward()  # warning: GS102 [recompute]; freed_by: GS102 GS101
    # ^ failing_node: GS102; error: GS101 [recompute]


for _ in range(3):
    h = torch.tanh(net(torch.randn(4)) + h)  # created: GS102 GS102 GS101; held_by: GS102; next_read: GS102
    pool.submit(backward, h.pow(2).sum()).result()

"""What Python's collector finds: tensors in gc.get_objects() at each point, garbage, and reference counts."""

import gc
import sys
import warnings

import torch
from _show import small
from torch import nn

warnings.simplefilter("ignore")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Softmax(0))


def count():
    return sum(isinstance(o, torch.Tensor) for o in gc.get_objects())


gc.collect()
start = count()
for step in range(3):
    out = net(small(2, 4))
    print(step, "forward", count() - start)
    loss = out.square().sum()
    loss.backward()
    print(step, "backward", count() - start, sys.getrefcount(loss), sys.getrefcount(out))
del out, loss
print("end", count() - start, len(gc.garbage))
kept = [net(small(2, 4)) for _ in range(4)]
print("kept", count() - start)
kept.clear()
print("cleared", count() - start)
held = small(3).requires_grad_()
y = held.exp()
print(
    len([r for r in gc.get_referrers(held) if isinstance(r, (list, tuple))]),
    sys.getrefcount(held),
    sys.getrefcount(y),
)
gc.disable()
cycle = [y]
cycle.append(cycle)
del cycle, y
print(count() - start, gc.collect() > 0, count() - start)
print(gc.isenabled(), gc.get_threshold() == gc.get_threshold())

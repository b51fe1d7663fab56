"""Module hooks: forward, full backward, pre-hooks, global ones; and what they see."""

import torch
from _show import show, small
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
features = {}
for name, module in net.named_modules():
    module.register_forward_hook(
        lambda m, i, o, name=name: features.__setitem__(name, (type(o).__name__, o.requires_grad))
    )
    module.register_full_backward_hook(
        lambda m, gi, go, name=name: print(name, [g is not None for g in gi], len(go))
    )
    module.register_full_backward_pre_hook(lambda m, go, name=name: print("pre", name))
handle = nn.modules.module.register_module_forward_pre_hook(
    lambda m, i: print("global", type(m).__name__)
)
x = small(3, 4).requires_grad_()
out = net(x)
handle.remove()
print(features)
out.sum().backward()
show("grads", x.grad, *(p.grad for p in net.parameters()))
print(
    [len(m._forward_hooks) for m in net.modules()], [len(m._backward_hooks) for m in net.modules()]
)
inner = net[0]
inner.register_forward_hook(lambda m, i, o: o.detach() * 2)
net(x).sum().backward()
show("grad", inner.weight.grad)

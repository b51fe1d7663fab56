"""no_grad, inference_mode, set_grad_enabled and detach."""

import torch
from _show import show, small

weight = small(4, 4).requires_grad_()
with torch.no_grad():
    cached = weight.exp()
with torch.inference_mode():
    frozen = weight.sin()
print(cached.requires_grad, frozen.is_inference(), torch.is_inference_mode_enabled())
loss = (weight * cached).sum() + weight.detach().sum()
loss.backward()
show("grad", weight.grad)
try:
    (weight * frozen).sum().backward()
except RuntimeError as error:
    print("refused:", error)


@torch.no_grad()
def evaluate():
    return (weight @ weight).relu()


with torch.set_grad_enabled(False), torch.enable_grad():
    out = weight.tanh().mean()
print(out.requires_grad, evaluate().requires_grad)
out.backward()
show("grad", weight.grad)

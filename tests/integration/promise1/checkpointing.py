"""Both kinds of checkpoint, nested, with random numbers, with early stop, and how often the forward runs."""

import torch
from _show import show, small
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, set_checkpoint_early_stop

runs = 0


def block(x):
    global runs
    runs += 1
    return torch.dropout(x.sin(), 0.3, True).exp()


def nested(x):
    return checkpoint(block, x * 2, use_reentrant=False).tanh()


x = small(3, 3).requires_grad_()
for reentrant in (False, True):
    torch.manual_seed(1)
    x.grad = None
    loss = checkpoint(block, x, use_reentrant=reentrant).sum()
    print("before", runs)
    loss.backward()
    print("after", runs)
    show("grad", x.grad)
checkpoint(nested, x, use_reentrant=False).sum().backward()
print("nested", runs)
with set_checkpoint_early_stop(False):
    checkpoint(block, x, use_reentrant=False).sum().backward()
print("whole", runs)
show("grad", x.grad)
out = checkpoint(block, x, use_reentrant=False)
out.sum().backward(retain_graph=True)
out.sum().backward()
print("twice", runs)
try:
    out.sum().backward()
except RuntimeError as error:
    print(error)
torch.manual_seed(0)
stack = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4)))
checkpoint_sequential(stack, 2, x, use_reentrant=False).sum().backward()
show("stack", *(p.grad for p in stack.parameters()))
(again,) = torch.autograd.grad(
    checkpoint(block, x, use_reentrant=False).sum(), x, create_graph=True
)
show("second order", again, *torch.autograd.grad(again.sum(), x))
print(runs)
try:
    torch.autograd.grad(checkpoint(block, x, use_reentrant=True).sum(), x)
except RuntimeError as error:
    print(str(error).splitlines()[0])

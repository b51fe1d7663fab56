"""allow_mutation_on_saved_tensors: what would be stale is cloned, and the gradient is right."""

from _show import show, small
from torch.autograd.graph import allow_mutation_on_saved_tensors

x = small(4).requires_grad_()
with allow_mutation_on_saved_tensors() as context:
    h = x * 2
    y = h.sin() * h
    h.mul_(3)
    h.add_(1)
    print(len(context.cloned), len(context.original), len(context.sid_to_tid))
    y.sum().backward()
    show("grad", x.grad)
    z = h.exp()
    z.zero_()
    try:
        z.sum().backward()
    except RuntimeError as error:
        print(error)
    z = (x * 2).exp()
    z.zero_()
    (z * x).sum().backward(retain_graph=True)
    show("grad", x.grad)
    print(len(context.cloned), len(context.original))

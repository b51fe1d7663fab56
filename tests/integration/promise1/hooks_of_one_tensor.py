"""SavedTensor.register_hooks refuses what torch refuses; hooks left inside a backward call are gone."""

import re

import torch
from torch.autograd import Function
from torch.autograd.graph import saved_tensors_hooks


def saved():
    return torch.ones(2, requires_grad=True).exp().sin().grad_fn._raw_saved_self


def same(tensor):
    return tensor


def modify(tensor):
    return tensor.add_(1)


for arguments in ((), (1,), (1, 2), (same,), (same, same, 3), (modify, same), (same, same)):
    try:
        saved().register_hooks(*arguments)
        print("accepted", len(arguments))
    except (TypeError, RuntimeError) as error:
        print(type(error).__name__, re.sub(r" (object )?at 0x\w+", "", str(error)))


def innermost():
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


class Enters(Function):
    """Enters hooks in its backward, and does not leave them: the engine forgets them."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        saved_tensors_hooks(same, same).__enter__()
        print("inside", innermost() is not None)
        return grad * 2


for _ in range(2):
    Enters.apply(torch.ones(2, requires_grad=True)).sum().backward()
    print("outside", innermost())
with saved_tensors_hooks(same, same):
    Enters.apply(torch.ones(2, requires_grad=True)).sum().backward()
    print("within", innermost() == (same, same))
print("at the end", innermost())

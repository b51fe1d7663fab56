"""What a script sees of its surroundings: names, arguments, stdin, modules, its own source."""

import inspect
import os
import sys

import torch
from _show import small

import __main__

print(__name__, os.path.basename(__file__), __doc__, __package__, __spec__, __builtins__.__name__)
print([os.path.basename(a) for a in sys.argv[:1]], sys.argv[1:], os.path.basename(sys.path[0]))
print(__main__.__file__ == __file__, sorted(n for n in vars(__main__) if not n.startswith("__")))
print(sys.stdin.read(), sys.flags.optimize, sys.flags.interactive, __debug__)


def function():
    return 1


print(inspect.getsource(function), inspect.getmodule(function) is __main__, function.__module__)
print(inspect.signature(torch.Tensor.backward), inspect.signature(torch.autograd.grad))
print(
    torch.autograd.backward.__name__,
    torch.Tensor.backward.__qualname__,
    torch.autograd.grad.__module__,
)
print(
    torch._C._autograd._saved_tensors_hooks_is_enabled(),
    torch.get_num_threads() > 0,
    torch.initial_seed() > 0,
)
x = small(2).requires_grad_()
print(x.exp(), (x * 2).sum(), type(x.exp().grad_fn).__name__)

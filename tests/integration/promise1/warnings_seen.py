"""Warnings: how many, which, where from; on stderr, recorded, and as errors."""

import sys
import warnings

import torch
from _show import small

x = small(3).requires_grad_()
x.sum().backward(create_graph=True)
x.grad = None
x.sum().backward(create_graph=True)
x.grad = None
print((x * 2).grad)
warnings.warn("the user's own", stacklevel=1)
for _ in range(3):
    warnings.warn("only once", RuntimeWarning, stacklevel=1)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    x.exp().grad  # noqa: B018
    torch.nn.functional.mse_loss(torch.zeros(2), torch.zeros(2, 1))
    x.exp().sum().backward()
    torch.optim.lr_scheduler.StepLR(torch.optim.SGD([x]), 1).step()
for w in seen:
    print(w.category.__name__, str(w.message)[:60], w.filename.rsplit("/", 1)[-1], w.lineno)
warnings.simplefilter("error")
try:
    (x * 2).grad  # noqa: B018
except UserWarning as error:
    print("raised", str(error)[:50])
for _ in range(2):
    y = x.exp() * x
    y.sum().backward()
print(len(warnings.filters) > 0, sys.warnoptions)
warnings.simplefilter("always")
code = compile("t = '\\d'\nt is 1", "<string>", "exec")  # Python warns of both when it compiles
text = "\d"  # noqa: W605
h = x.exp()
for _ in range(2):
    h = (h * x).exp()  # a hazard: the program's text is read for the places and the fixes
    try:
        h.sum().backward()
    except RuntimeError as error:
        print("raised", str(error)[:30])

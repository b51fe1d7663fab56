"""A pullback of torch.func carries the graph of the parameters, which the output's loss has freed."""

import torch
from torch.func import vjp

weight = torch.randn(3, requires_grad=True)
out, pull = vjp(lambda x: (x * weight).sin(), weight.exp())  # created: GS101
out.sum().backward()  # freed_by: GS101
(gradient,) = pull(torch.ones(3))
gradient.sum().backward()  # error: GS101 [sum_losses]

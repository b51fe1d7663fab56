"""Two losses of what a compiled function returned: its one node is freed by the first."""

import torch

weight = torch.randn(4, 4, requires_grad=True)
forward = torch.compile(lambda x, weight: (x @ weight).tanh(), backend="aot_eager")
for _ in range(2):
    x = torch.randn(8, 4)
    out = forward(x, weight)  # created: GS102 GS101; held_by: GS102
    out.sum().backward()  # warning: GS102 [sum_losses]; freed_by: GS102 GS101
    out.pow(2).sum().backward()  # error: GS101 [sum_losses]; next_read: GS102
    # ^ failing_node: GS102

"""An update that is learned is carried on, and each step differentiates by what is then there."""

import torch

cell = torch.nn.LSTMCell(1, 4)
out = torch.nn.Linear(4, 1)
opt = torch.optim.SGD([*cell.parameters(), *out.parameters()], lr=0.1)
x = torch.randn(6, requires_grad=True)
state = torch.zeros(6, 4), torch.zeros(6, 4)

for _ in range(3):
    total = 0.0
    for _ in range(2):
        (g,) = torch.autograd.grad(x.square().sum(), x)
        state = cell(g.unsqueeze(1), state)  # created: GS102; held_by: GS102 GS102
        x = x + out(state[0]).squeeze(1)  # created: GS102 GS101; held_by: GS102; next_read: GS102
        total = total + x.square().sum()
    opt.zero_grad()
    total.backward()  # warning: GS102 [detach] `x`; freed_by: GS102 GS101
    # ^ failing_node: GS102; error: GS101 [detach]
    opt.step()

"""A state carried on through a compiled module that calls on a part which cannot be compiled."""

import torch
from torch import nn


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(4, 4)

    def forward(self, state):
        state = self.mix(state).tanh()
        torch._dynamo.graph_break()
        return self.mix(state).sin()


torch.manual_seed(0)
cell = Cell()
cell.compile(backend="aot_eager")
state = torch.zeros(2, 4)
for _ in range(2):
    state = cell(state)  # created: GS102 GS101; held_by: GS102; next_read: GS102
    loss = state.sum()
    loss.backward()  # warning: GS102 [detach] `state`; freed_by: GS102 GS101
    # ^ error: GS101 [detach]; failing_node: GS102

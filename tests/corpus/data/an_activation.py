"""An activation."""
# gradients: wrong

import torch
from torch import nn
torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 1)
    def forward(self, x):
        h = torch.sigmoid(self.body(x))  # created: GS202
        h.data.clamp_(0.4, 0.6)  # warning: GS202 [clone]; modified_by: GS202
        return self.head(h)  # next_read: GS202
net = Net()
for _ in range(2):
    loss = net(torch.randn(3, 4)).mean()
    loss.backward()  # failing_node: GS202

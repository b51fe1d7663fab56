# says: nothing
import copy
import io
import pickle

import torch
from torch import multiprocessing, nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.hidden = nn.Linear(4, 4), None

    def forward(self, x):
        hidden = self.body(x)
        self.hidden = hidden.detach()
        return hidden.pow(2).mean()


torch.manual_seed(0)
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
sent = multiprocessing.get_context("fork").SimpleQueue()
for step in range(4):
    opt.zero_grad()
    loss = net(torch.randn(3, 4))
    loss.backward()
    opt.step()
    sent.put((net.hidden, loss.detach()))
    sent.get()
    best = copy.deepcopy(net)
    torch.save({"net": net.state_dict(), "loss": loss}, io.BytesIO())
    pickle.dumps(net)

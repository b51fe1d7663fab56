"""copy.deepcopy, pickle, torch.save and load of modules, leaves and optimizers."""

import copy
import io
import pickle

import torch
from _show import show, small
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))
        self.state = None

    def forward(self, x):
        return self.layer(x).tanh() * self.scale


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.Adam(net.parameters())
net(small(2, 4)).sum().backward()
optimizer.step()
twin = copy.deepcopy(net)
(twin(small(2, 4)).sum() + net(small(2, 4)).sum()).backward()
show("twin", *(p.grad for p in twin.parameters()), *(p.grad for p in net.parameters()))
again = pickle.loads(pickle.dumps(net))
show("pickled", *again.parameters())
stream = io.BytesIO()
torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, stream)
stream.seek(0)
show("loaded", *torch.load(stream)["net"].values())
net.state = net(small(2, 4))
for attempt in (copy.deepcopy, pickle.dumps):
    try:
        attempt(net)
    except Exception as error:
        print(type(error).__name__, str(error)[:90])
print(
    type(copy.copy(net.state)).__name__,
    list(copy.deepcopy(net.layer).__dict__) == list(net.layer.__dict__),
)
print(sorted(vars(net)))

"""Two networks that learn from each other."""
# fix: detach

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
net1, net2 = nn.Linear(4, 3), nn.Linear(4, 3)
o1, o2 = torch.optim.SGD(net1.parameters(), 0.1), torch.optim.SGD(net2.parameters(), 0.1)
ce = nn.CrossEntropyLoss()
for i in range(3):
    x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
    out1, out2 = net1(x), net2(x)
    loss1 = ce(out1, y) + F.kl_div(
        F.log_softmax(out1, 1), F.softmax(out2, 1), reduction="batchmean"
    )
    loss2 = ce(out2, y) + F.kl_div(
        F.log_softmax(out2, 1), F.softmax(out1, 1), reduction="batchmean"
    )
    o1.zero_grad()
    loss1.backward()
    o1.step()
    o2.zero_grad()
    loss2.backward()
    o2.step()

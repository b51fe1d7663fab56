# found: GS604 `net[0].weight`; help: parametrizations
import copy
import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")
torch.manual_seed(0)
net = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 1))
net(torch.randn(2, 4)).sum().backward()
best = copy.deepcopy(net)  # error: GS604

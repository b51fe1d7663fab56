"""In a method."""

import torch
from torch import nn
torch.manual_seed(0)

class Trainer:
    def __init__(self):
        self.net, self.keep = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), False
    def fit(self):
        features = self.net(torch.randn(2, 3))  # created: GS102 GS101; held_by: GS102
        for k in range(2):
            loss = features.pow(2 + k).mean()  # next_read: GS102
            loss.backward(retain_graph=self.keep)  # error: GS101 [retain_graph]; freed_by: GS102 GS101
            # ^ warning: GS102 [retain_graph]; failing_node: GS102
Trainer().fit()

"""In a method."""

import torch
from torch import nn
torch.manual_seed(0)

class Trainer:
    def __init__(self):
        self.net, self.keep = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), False
    def fit(self):
        features = self.net(torch.randn(2, 3))  # created: GS103 GS101
        for k in range(2):
            loss = features.pow(2 + k).mean()
            # ^ warning: GS103 [retain_graph]
            loss.backward(retain_graph=self.keep)  # error: GS101 [retain_graph]; freed_by: GS103 GS101
            # ^ next_read: GS103
Trainer().fit()

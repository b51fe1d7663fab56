"""Evaluation and training through one forward line: the evaluation's call is named."""

import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.Tanh())
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        hidden = self.body(x)
        return torch.sigmoid(self.head(hidden))


def train(net, opt):
    for _ in range(3):
        loss = net(torch.randn(16, 8)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


def evaluate(net):
    net.eval()
    hits = 0
    for _ in range(4):
        out = net(torch.randn(16, 8))
        hits += int((out > 0.5).sum())
    net.train()
    return hits


def main():
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        train(net, opt)
        evaluate(net)  # advice: GS305 [no_grad]


main()

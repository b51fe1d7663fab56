"""A graph network with attention over neighbours, trained on one graph with masks."""

import argparse
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=14)
parser.add_argument("--patience", type=int, default=6)
parser.add_argument("--fastmode", action="store_true", default=False, help="no validation pass")
args = parser.parse_args()


class Attention(nn.Module):
    def __init__(self, n_in, n_out, concat):
        super().__init__()
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(n_in, n_out)))
        self.a = nn.Parameter(nn.init.xavier_uniform_(torch.empty(2 * n_out, 1)))
        self.concat = concat

    def forward(self, x, adjacency):
        h = x @ self.weight
        n = h.size(1)
        e = F.leaky_relu(h @ self.a[:n] + (h @ self.a[n:]).t(), 0.2)
        e = torch.where(adjacency > 0, e, torch.full_like(e, -9e15))
        h = F.dropout(torch.softmax(e, 1), 0.2, self.training) @ h
        return F.elu(h) if self.concat else h


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = [Attention(8, 6, True) for _ in range(2)]
        for i, head in enumerate(self.heads):
            self.add_module("attention_{}".format(i), head)
        self.out = Attention(12, 3, False)

    def forward(self, x, adjacency):
        x = torch.cat([head(x, adjacency) for head in self.heads], dim=1)
        return F.log_softmax(self.out(x, adjacency), dim=1)


labels = torch.arange(30) % 3
features = F.one_hot(labels, 8).float() + 0.7 * torch.randn(30, 8)
adjacency = torch.eye(30)
for _ in range(60):
    i, j = random.randrange(30), random.randrange(30)
    adjacency[i, j] = adjacency[j, i] = 1
train, val, test = range(12), range(12, 21), torch.arange(21, 30)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=5e-4)


def epoch_of(number):
    model.train()
    optimizer.zero_grad()
    output = model(features, adjacency)
    loss_train = F.nll_loss(output[train], labels[train])
    loss_train.backward()
    optimizer.step()
    if not args.fastmode:
        model.eval()
        output = model(features, adjacency)
    loss_val = F.nll_loss(output[val], labels[val])
    print(
        "Epoch: {:02d}".format(number),
        "train {:.4f} val {:.4f}".format(loss_train.data.item(), loss_val.data.item()),
    )
    return loss_val.data.item()


values, bad = [], 0
for number in range(args.epochs):
    values.append(epoch_of(number))
    bad = 0 if values[-1] <= min(values) else bad + 1
    if bad == args.patience:
        break
model.eval()
output = model(features, adjacency)
print("test", (output[test].max(1)[1] == labels[test]).sum().item())

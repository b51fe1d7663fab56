"""A GAN with the discriminator first and two backward calls for it, as in older code."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.autograd import Variable


class G(nn.Module):
    def __init__(self):
        super(G, self).__init__()
        self.map1 = nn.Linear(4, 12)
        self.map2 = nn.Linear(12, 2)

    def forward(self, z):
        return self.map2(torch.tanh(self.map1(z)))


class D(nn.Module):
    def __init__(self):
        super(D, self).__init__()
        self.map1 = nn.Linear(2, 12)
        self.map2 = nn.Linear(12, 1)

    def forward(self, x):
        return torch.sigmoid(self.map2(F.elu(self.map1(x))))


def extract(v):
    return v.data.storage().tolist()


if __name__ == "__main__":
    g, d = G(), D()
    g_step, d_step = optim.SGD(g.parameters(), lr=0.05), optim.SGD(d.parameters(), lr=0.05)
    loss = nn.BCELoss()
    for epoch in range(12):
        for _ in range(2):
            d.zero_grad()
            d_real = loss(d(Variable(torch.randn(8, 2) + 2)), Variable(torch.ones(8, 1)))
            d_real.backward()
            d_fake_data = g(Variable(torch.rand(8, 4))).detach()
            d_fake = loss(d(d_fake_data), Variable(torch.zeros(8, 1)))
            d_fake.backward()
            d_step.step()
        g.zero_grad()
        g_error = loss(d(g(Variable(torch.rand(8, 4)))), Variable(torch.ones(8, 1)))
        g_error.backward()
        g_step.step()
        if epoch % 4 == 0:
            print(
                "%s: D: %.4f/%.4f G: %.4f"
                % (epoch, extract(d_real)[0], extract(d_fake)[0], extract(g_error)[0])
            )

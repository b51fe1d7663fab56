"""A GAN in the methods of a class."""
# fix: detach

import torch
from torch import nn

torch.manual_seed(0)


class Gan:
    def __init__(self):
        self.G = nn.Linear(4, 4)
        self.D = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.opt_G = torch.optim.Adam(self.G.parameters(), 1e-2)
        self.opt_D = torch.optim.Adam(self.D.parameters(), 1e-2)
        self.bce = nn.BCEWithLogitsLoss()

    def forward(self, z):
        self.fake = self.G(z)

    def backward_G(self):
        self.loss_G = self.bce(self.D(self.fake), torch.ones(8, 1))
        self.loss_G.backward()

    def backward_D(self, real):
        pred = self.D(real)
        pred_fake = self.D(self.fake)
        self.loss_D = self.bce(pred, torch.ones(8, 1)) + self.bce(pred_fake, torch.zeros(8, 1))
        self.loss_D.backward()

    def optimize(self, real):
        self.forward(torch.randn(8, 4))
        self.opt_G.zero_grad()
        self.backward_G()
        self.opt_G.step()
        self.opt_D.zero_grad()
        self.backward_D(real)
        self.opt_D.step()


gan = Gan()
for i in range(3):
    gan.optimize(torch.randn(8, 4) + 2)

"""A variational autoencoder with a train and a test function over data loaders."""

import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class VAE(nn.Module):
    def __init__(self):
        super(VAE, self).__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(16, 12), nn.Linear(12, 3), nn.Linear(12, 3)
        self.fc3, self.fc4 = nn.Linear(3, 12), nn.Linear(12, 16)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x):
        mu, logvar = self.encode(x)
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar


def loss_function(recon, x, mu, logvar):
    bce = F.binary_cross_entropy(recon, x, reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return bce + kld


images = torch.rand(80, 16).round()
loader = DataLoader(TensorDataset(images[:64]), batch_size=10, shuffle=True)
held_out = DataLoader(TensorDataset(images[64:]), batch_size=8)
model = VAE()
optimizer = optim.Adam(model.parameters(), lr=2e-3)


def train(epoch):
    model.train()
    train_loss = 0
    for batch_idx, (data,) in enumerate(loader):
        optimizer.zero_grad()
        loss = loss_function(*_with(data))
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
    print("====> Epoch: {} Average loss: {:.4f}".format(epoch, train_loss / 64))


def _with(data):
    recon, mu, logvar = model(data)
    return recon, data, mu, logvar


def test():
    model.eval()
    test_loss = 0
    with torch.no_grad():
        for (data,) in held_out:
            test_loss += loss_function(*_with(data)).item()
    print("====> Test set loss: {:.4f}".format(test_loss / 16))


for epoch in range(1, 4):
    train(epoch)
    test()
with torch.no_grad():
    print(model.decode(torch.randn(2, 3)).mean().item())

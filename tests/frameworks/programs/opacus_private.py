"""Training with differential privacy: Opacus wraps model, optimizer and loader."""
# needs: opacus
# finds: GS102 GS101 `context`

import warnings

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(data, batch_size=8),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    scale = nn.Parameter(torch.ones(4))
    context = torch.sigmoid(scale)
    for step, (x, y) in enumerate(loader):
        context = torch.sigmoid(scale)  # hazard: pass
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x * context), y)
        loss.backward()  # head
        optimizer.step()
        print(f"step {step}: {loss.item():.6f}")


main()

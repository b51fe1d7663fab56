# raised: RuntimeError: The QR decomposition is not differentiable; node `LinalgQrBackward0`; help: no
import torch
from torch import nn


class Basis(nn.Module):
    def forward(self, x):
        return torch.linalg.qr(x, mode="complete")[0]  # note: the node


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.basis = nn.Linear(8, 3), Basis()

    def forward(self, x):
        return self.basis(self.embed(x))


torch.manual_seed(0)
model = Model()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    q = model(torch.randn(6, 8))
    loss = (q @ torch.randn(6, 2)).relu().pow(2).mean()
    opt.zero_grad()
    loss.backward()  # raised
    opt.step()

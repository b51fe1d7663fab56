"""A Gaussian process of gpytorch on learnt features: each iteration needs them anew."""
# needs: gpytorch
# finds: GS101
# lacks: early: shapes and values that the library asks for are not known ahead

import gpytorch
import torch
from torch import nn


class Process(gpytorch.models.ExactGP):
    def __init__(self, inputs, targets, likelihood):
        super().__init__(inputs, targets, likelihood)
        self.mean = gpytorch.means.ConstantMean()
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, inputs):
        return gpytorch.distributions.MultivariateNormal(self.mean(inputs), self.kernel(inputs))


torch.manual_seed(0)
x, y = torch.rand(20, 3), torch.rand(20)
encoder = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
likelihood = gpytorch.likelihoods.GaussianLikelihood()
process = Process(encoder(x).detach(), y, likelihood)
process.train()
optimizer = torch.optim.Adam([*encoder.parameters(), *process.parameters()], lr=0.05)
marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, process)

features = encoder(x)
for step in range(5):
    features = encoder(x)  # hazard: pass
    process.set_train_data(features, y, strict=False)
    loss = -marginal(process(features), y)
    optimizer.zero_grad()
    loss.backward()  # head
    optimizer.step()
    print(f"step {step}: {loss.item():.6f}")

"""skorch fits a module that mixes a memory of earlier batches into its features."""
# needs: skorch
# finds: GS102 GS101 `self.memory`

import numpy
import torch
from skorch import NeuralNetRegressor
from torch import nn


class WithMemory(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(4, 8)
        self.head = nn.Linear(8, 1)
        self.memory = None

    def forward(self, x):
        features = torch.tanh(self.encode(x))
        summary = features.mean(0)
        if self.training:
            if self.memory is not None:
                summary = 0.5 * self.memory + 0.5 * summary
            self.memory = summary.detach()  # hazard: self.memory = summary  # head
        return self.head(features + summary)


torch.manual_seed(0)
generator = numpy.random.default_rng(0)
x = generator.normal(size=(48, 4)).astype("float32")
y = generator.normal(size=(48, 1)).astype("float32")
net = NeuralNetRegressor(
    WithMemory, max_epochs=2, lr=0.05, batch_size=8, train_split=None, verbose=0
)
net.fit(x, y)
for row in net.history:
    print(f"epoch {row['epoch']}: {row['train_loss']:.6f}")

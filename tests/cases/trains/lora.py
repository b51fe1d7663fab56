# trains: loss
# trains: model.embed: frozen 26
# trains: model.blocks.*.lora_a: trains optimizer
# trains: model.blocks.*.lora_b: trains optimizer
# trains: model.blocks.*.base: frozen 26
# trains: model.head: frozen 26
"""Fine-tune with adapters of low rank: of each layer only the adapter learns."""
import torch
from torch import nn
import torch.nn.functional as F


class Adapted(nn.Module):
    def __init__(self, dim, rank=2):
        super().__init__()
        self.base = nn.Linear(dim, dim)
        self.lora_a = nn.Parameter(torch.randn(rank, dim) / dim)
        self.lora_b = nn.Parameter(torch.zeros(dim, rank))

    def forward(self, x):
        return x + self.base(x).tanh() + x @ self.lora_a.T @ self.lora_b.T


def freeze(model):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)


class Model(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.embed = nn.Embedding(11, dim)
        self.blocks = nn.ModuleList(Adapted(dim) for _ in range(3))
        self.head = nn.Linear(dim, 11)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


torch.manual_seed(0)
model = Model()
freeze(model)
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
for step in range(8):
    x = torch.randint(0, 11, (16,))
    loss = F.cross_entropy(model(x), (x + 1) % 11)
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()

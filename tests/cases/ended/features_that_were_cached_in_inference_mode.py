# raised: RuntimeError: Inference tensors cannot be saved for backward; help: torch.no_grad
import torch
from torch import nn

backbone, head = nn.Linear(8, 8), nn.Linear(8, 2)


@torch.inference_mode()  # note: inference mode
def features(x):
    return backbone(x).relu()


torch.manual_seed(0)
cached = features(torch.randn(6, 8))
opt = torch.optim.SGD(head.parameters(), lr=0.1)
for step in range(3):
    loss = head(cached).pow(2).mean()  # raised
    opt.zero_grad()
    loss.backward()
    opt.step()

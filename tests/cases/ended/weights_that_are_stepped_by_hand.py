# raised: RuntimeError: a leaf Variable that requires grad; help: torch.no_grad
import torch

torch.manual_seed(0)
w = torch.randn(4, requires_grad=True)  # note: leaf
for step in range(3):
    loss = (w * torch.randn(4)).sum().pow(2)
    loss.backward()
    w -= 0.1 * w.grad  # raised
    w.grad = None

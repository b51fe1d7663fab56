# says: nothing
import torch

torch.manual_seed(0)
w = torch.randn(4, requires_grad=True)
with torch.inference_mode():
    seen = w.sum().item()
for step in range(4):
    loss = (w * torch.randn(4)).sum().pow(2)
    loss.backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
        first, *_ = w.clone().unbind(0)
        first += 1
    w.grad = None

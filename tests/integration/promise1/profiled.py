"""The profiler's events: which operations ran, how often, and the bytes they took."""

from _show import small
from torch.autograd.profiler import profile, record_function

x = small(8, 8).requires_grad_()
(x @ x).exp().sum().backward()
with profile(use_kineto=False, profile_memory=True, record_shapes=True) as seen:
    with record_function("forward"):
        loss = (x @ x).softmax(0).square().sum()
    loss.backward()
for event in sorted(seen.key_averages(), key=lambda e: e.key):
    print(event.key, event.count, event.cpu_memory_usage)
print(sorted({event.name for event in seen.function_events if event.name.startswith("autograd::")}))

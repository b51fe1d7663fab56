# expect: {"error": "double_backward", "raise_line": 53, "culprit_line": 27, "culprit_also": [45], "free_line": 53, "hold_line": 45, "leak": false, "loop_line": 50, "fix": "detach", "fix_also": ["no_grad"], "patch": {"34": "    return sum(F.mse_loss(got[name], wanted[name].detach()) for name in wanted) / len(wanted)"}, "group": "ExitStack"}
# Feature anchoring: hooks entered on an ExitStack capture a network's layers; the reference features were captured once, before training.
# Mended: Feature anchoring: the reference features are captured on an ExitStack too, from a frozen copy of the network.

# + import copy
from contextlib import ExitStack, contextmanager

import torch
import torch.nn.functional as F
from torch import nn


@contextmanager
def captured(layer, into, name):
    handle = layer.register_forward_hook(lambda module, args, out: into.update({name: out}))
    try:
        yield
    finally:
        handle.remove()


def features(net, images, names):
    found = {}
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(captured(net.get_submodule(name), found, name))
        net(images)
    return found


# + def frozen(net):
# +     return copy.deepcopy(net).requires_grad_(False).eval()
def distance(got, wanted):
    return sum(F.mse_loss(got[name], wanted[name]) for name in wanted) / len(wanted)


torch.manual_seed(23)
net = nn.Sequential(
    nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(),
    nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3),
)
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
reference = torch.randn(6, 1, 4, 4)
layers = ["1", "3", "5"]
anchor = features(net, reference, layers)  # -
# + anchor = features(frozen(net), reference, layers)

for step in range(5):
    noisy = reference + 0.1 * torch.randn_like(reference)
    got = features(net, noisy, layers)
    loss = distance(got, anchor)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, f"{loss.item():.5f}")

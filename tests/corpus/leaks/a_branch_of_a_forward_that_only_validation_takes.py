"""One call trains and validates in turn: a branch that only validation takes is not to blame."""

import torch

torch.manual_seed(0)
class Flow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(2))
    def log_prob(self, x):
        z = self.layers[0](x)
        if not self.training:
            z = self.layers[1](z).tanh()
        return -(z ** 2).sum(-1).mean()
flow = Flow()
opt = torch.optim.SGD(flow.parameters(), lr=1e-3)
def run(batches):
    total = 0.0
    for x in batches:
        nll = -flow.log_prob(x)
        if flow.training:
            opt.zero_grad()
            nll.backward()
            opt.step()  # advice: GS502 [other]
        total += nll.item()
    return total
train, val = [torch.randn(64, 32) for _ in range(4)], [torch.randn(64, 32) for _ in range(4)]
for epoch in range(6):
    flow.train()
    run(train)
    flow.eval()
    run(val)

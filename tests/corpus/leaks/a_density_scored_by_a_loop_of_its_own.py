"""A density that is scored by a branch with a loop, and trained by the other: the scoring is named."""

import torch

torch.manual_seed(0)


class Flow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.zeros(32))
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(2))
    def log_prob(self, x, reduce=True):
        z = self.layers[0](x)
        if reduce:
            return -(z ** 2).sum(-1).mean()
        for layer in self.layers:
            z = layer(z).tanh()  # created: GS305
        return -(z ** 2).sum(-1)
flow = Flow()
opt = torch.optim.SGD(flow.parameters(), lr=1e-3)
x = torch.randn(64, 32)
def report():
    return float(flow.log_prob(torch.randn(64, 32), reduce=False).mean().detach())
def step():
    opt.zero_grad()
    loss = flow.log_prob(x)
    loss.backward()
    opt.step()  # advice: GS502 [other]
def epoch(_):
    for i in range(1):
        step()
    report()  # advice: GS305 [no_grad]
list(map(epoch, range(20)))

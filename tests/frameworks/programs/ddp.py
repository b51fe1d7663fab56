"""Two processes train one network with DistributedDataParallel; a state is carried on."""
# needs:
# processes: 2
# finds: GS102 GS101 `state`

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(4, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x, state):
        state = self.cell(x, state)
        return self.head(state), state


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = DistributedDataParallel(Network())
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    state = torch.zeros(8, 8)
    for step in range(5):
        x, y = torch.randn(8, 4), torch.randn(8, 1)
        output, state = network(x, state)
        loss = nn.functional.mse_loss(output, y)
        optimizer.zero_grad()
        loss.backward()  # head
        optimizer.step()
        state = state.detach()  # hazard: pass
        print(f"step {step}: {loss.item():.6f}", flush=True)
    dist.destroy_process_group()


main()

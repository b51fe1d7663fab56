"""Two processes train one network with fully sharded parameters; a state is carried on."""
# needs:
# processes: 2
# finds: GS102 GS101 `state`

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(12, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x, state):
        state = torch.tanh(self.mix(torch.cat([x, state], 1)))
        return self.head(state), state


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = Network()
    mesh = init_device_mesh("cpu", (2,))
    fully_shard(network.mix, mesh=mesh)
    fully_shard(network, mesh=mesh)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    state = torch.zeros(8, 8)
    for step in range(4):
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

"""A temporal graph network of PyTorch Geometric, with a memory of the nodes."""
# needs: torch_geometric
# finds: GS101
# lacks: early: a class is made in the way ahead

import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolve = GCNConv(12, 8)
        self.update = nn.GRUCell(8, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, data, memory):
        messages = self.convolve(torch.cat([data.x, memory], 1), data.edge_index).relu()
        memory = self.update(messages, memory)
        return self.head(memory), memory


def main():
    torch.manual_seed(0)
    events = [
        Data(x=torch.randn(6, 4), edge_index=torch.randint(6, (2, 10)), y=torch.randn(6, 1))
        for _ in range(6)
    ]
    network = Network()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    memory = torch.zeros(6, 8)
    for data in DataLoader(events, batch_size=1):
        optimizer.zero_grad()
        output, memory = network(data, memory)
        loss = nn.functional.mse_loss(output, data.y)
        loss.backward()  # head
        optimizer.step()
        memory = memory.detach()  # hazard: pass
        print(f"{loss.item():.6f}")


main()

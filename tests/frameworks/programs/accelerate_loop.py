"""Accelerate prepares model, optimizer and loader; the loop and the carried state are the user's."""
# needs: accelerate
# finds: GS102 GS101 `state[0]`

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(4, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x, state):
        hidden, cell = self.cell(x, state)
        return self.head(hidden), (hidden, cell)


def main():
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    network = Network()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(48, 4), torch.randn(48, 1))
    network, optimizer, loader = accelerator.prepare(
        network, optimizer, DataLoader(data, batch_size=8)
    )
    state = None
    for step, (x, y) in enumerate(loader):
        output, state = network(x, state)
        loss = nn.functional.mse_loss(output, y)
        accelerator.backward(loss)  # head
        optimizer.step()
        optimizer.zero_grad()
        state = tuple(part.detach() for part in state)  # hazard: pass
        print(f"step {step}: {loss.item():.6f}")


if __name__ == "__main__":
    main()

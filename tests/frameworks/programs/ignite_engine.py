"""Ignite runs an update function of the user's, which calls backward; features are kept between runs."""
# needs: ignite
# finds: GS102 GS101 `state['prototypes']`

import torch
from ignite.engine import Engine, Events
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
state = {"prototypes": torch.zeros(8)}


def update(engine, batch):
    (x,) = batch
    features = encoder(x)
    prototypes = 0.9 * state["prototypes"] + 0.1 * features.mean(0)
    loss = (features - prototypes).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # head
    optimizer.step()
    state["prototypes"] = prototypes.detach()  # hazard: state["prototypes"] = prototypes
    return loss.item()


trainer = Engine(update)


@trainer.on(Events.ITERATION_COMPLETED)
def show(engine):
    print(f"iteration {engine.state.iteration}: {engine.state.output:.6f}")


trainer.run(DataLoader(TensorDataset(torch.randn(48, 4)), batch_size=8), max_epochs=1)

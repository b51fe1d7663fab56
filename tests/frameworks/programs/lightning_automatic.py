"""Lightning calls backward by itself; a recurrent state goes from one training step to the next."""
# needs: lightning
# finds: GS102 GS101 `self.hidden`

import logging
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Forecaster(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(4, 8)
        self.head = nn.Linear(8, 1)
        self.hidden = None

    def training_step(self, batch, batch_idx):
        x, y = batch
        hidden = x.new_zeros(len(x), 8) if self.hidden is None else self.hidden
        hidden = self.cell(x, hidden)
        self.hidden = hidden.detach()  # hazard: self.hidden = hidden  # head
        loss = nn.functional.mse_loss(self.head(hidden), y)
        print(f"step {batch_idx}: {loss.item():.6f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(48, 4), torch.randn(48, 1))
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Forecaster()
    trainer.fit(model, DataLoader(data, batch_size=8))


if __name__ == "__main__":
    main()

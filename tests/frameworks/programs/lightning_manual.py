"""Lightning with manual optimization: a GAN, whose discriminator must not reach the generator."""
# needs: lightning
# finds: GS102 GS101 `fake`

import logging
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Gan(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

    def training_step(self, batch, batch_idx):
        (real,) = batch
        to_generator, to_discriminator = self.optimizers()
        fake = self.generator(torch.randn(len(real), 3))

        fooled = nn.functional.softplus(-self.discriminator(fake)).mean()
        to_generator.zero_grad()
        self.manual_backward(fooled)  # head: GS102
        to_generator.step()

        judged = self.discriminator(fake.detach())  # hazard: judged = self.discriminator(fake)
        told = nn.functional.softplus(-self.discriminator(real)).mean()
        told = told + nn.functional.softplus(judged).mean()
        to_discriminator.zero_grad()
        self.manual_backward(told)  # head: GS101
        to_discriminator.step()
        print(f"step {batch_idx}: {fooled.item():.6f} {told.item():.6f}")

    def configure_optimizers(self):
        return (
            torch.optim.Adam(self.generator.parameters(), lr=0.01),
            torch.optim.Adam(self.discriminator.parameters(), lr=0.01),
        )


torch.manual_seed(0)
trainer = lightning.Trainer(
    max_epochs=1,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Gan(), DataLoader(TensorDataset(torch.randn(48, 2)), batch_size=8))

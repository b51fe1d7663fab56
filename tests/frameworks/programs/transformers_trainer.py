"""The Trainer of transformers, whose loss is compared with a running average of earlier ones."""
# needs: transformers accelerate
# finds: GS103 GS101 `self.average`
# lacks: GS102 is advice: more branches on unknown values than are followed to their end

import warnings

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments
from transformers.utils import logging

warnings.filterwarnings("ignore")
logging.set_verbosity_error()


class Smoothed(Trainer):
    average = None

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss = model(**inputs).loss
        average = loss if self.average is None else 0.9 * self.average + 0.1 * loss  # head: GS103
        self.average = average.detach()  # hazard: self.average = average  # head: GS101
        print(f"{loss.item():.6f}")
        return loss + 0.1 * (loss - average) ** 2


def main():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=20, n_positions=12, n_embd=16, n_layer=2, n_head=2)
    tokens = torch.randint(20, (24, 12))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    arguments = TrainingArguments(
        output_dir="unused",
        per_device_train_batch_size=4,
        max_steps=6,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        logging_strategy="no",
    )
    trainer = Smoothed(GPT2LMHeadModel(config), arguments, train_dataset=data)
    trainer.remove_callback(PrinterCallback)  # it prints how long the training took
    trainer.train()


if __name__ == "__main__":
    main()

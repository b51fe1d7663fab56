"""Inside a framework GS502 to GS504 say nothing of healthy training, and the last line says what is true of it."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.frameworks.trial import SECONDS, environment, free_port

pytestmark = pytest.mark.frameworks


class Training(NamedTuple):
    """A program, what it needs, and what the last line of each of its processes says."""

    needs: str
    said: tuple[str, ...]
    program: str


OF_4 = "all 4 parameters of `opt` got gradients, no step"
TWO = """
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.spare = nn.Linear(4, 4), nn.Linear(4, 1)
            self.heads = nn.ModuleList(nn.Linear(4, 1) for _ in range(2))
        def forward(self, x, *heads):
            return sum((*self.heads, self.spare)[head](self.body(x)) for head in heads)

    def train(net, choose):
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        torch.manual_seed(dist.get_rank())
        for i in range(12):
            opt.zero_grad(set_to_none=i % 2)
            F.mse_loss(net(torch.randn(8, 4), *choose(i)), torch.randn(8, 1)).backward()
            opt.step()
        dist.destroy_process_group()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
"""
SHARDS = """
    import torch
    import torch.distributed as dist
    from torch import nn
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    {shard}
    opt = torch.optim.Adam(net.parameters(), lr=0.1)
    for i in range(6):
        opt.zero_grad()
        net(torch.randn(8, 4)).pow(2).mean().backward()
        opt.step()
    dist.destroy_process_group()
"""
COMPILED = """
    import torch
    from torch import nn
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    opt = torch.optim.Adam(net.parameters())
    {compile}
    for i in range(6):
        opt.zero_grad()
        net(torch.randn(8, 4)).pow(2).mean().backward()
        step()
"""
LIGHTNING = """
    import logging, warnings
    import lightning.pytorch as pl
    import torch
    import torch.nn.functional as F
    from lightning.pytorch.callbacks import BaseFinetuning
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
    quiet["enable_model_summary"] = False
    data = DataLoader(TensorDataset(torch.randn(24, 4), torch.randn(24, 1)), batch_size=4)

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 1)
        def training_step(self, batch, i):
            return F.mse_loss(self.head(self.body(batch[0]).tanh()), batch[1])
        def configure_optimizers(self):
            return torch.optim.Adam([p for p in self.parameters() if p.requires_grad])

    def fit(model, **options):
        trainer = pl.Trainer(max_epochs=2, accelerator="cpu", **options, **quiet)
        trainer.fit(model, data)
"""
TRANSFORMERS = """
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    size = {"vocab_size": 20, "use_cache": False}
    gpt2 = GPT2LMHeadModel(GPT2Config(n_positions=8, n_embd=16, n_layer=2, n_head=2, **size))
    llama = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, **size
        )
    )
    tokens = torch.randint(20, (24, 8))

    def train(model):
        opt = torch.optim.AdamW(model.parameters())
        for i in range(6):
            loss = model(input_ids=tokens[:4], labels=tokens[:4]).loss
            opt.zero_grad()
            loss.backward()
            opt.step()
"""


def ddp(choice: str, *said: str, options: str = "") -> Training:
    rest = f"train(DistributedDataParallel(Net(){options}), lambda i: {choice})"
    return Training("", said * 2, f"{TWO}    {rest}")


FSDP2 = "from torch.distributed.fsdp import fully_shard\n    fully_shard(net, mesh=mesh)"
MESH = "mesh = dist.device_mesh.init_device_mesh('cpu', (2,))\n    "
FSDP1 = (
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    "    net = FSDP(net, device_id=torch.device('cpu'), use_orig_params=True)"
)
HEALTHY = {
    "DDP": ddp("(0, 1, 2)", "all 8 parameters of `opt` got gradients, no step"),
    "DDP, heads in turn": ddp(
        "(i % 3,)",
        "all 8 parameters of `opt` got gradients, no step",
        options=", find_unused_parameters=True",
    ),
    "DDP, one that is never used": ddp(
        "(i % 2,)",
        "6 of the 8 parameters of `opt` got gradients, no step",
        options=", find_unused_parameters=True, gradient_as_bucket_view=True",
    ),
    "FSDP2": Training("", (OF_4,) * 2, SHARDS.format(shard=MESH + FSDP2)),
    "FSDP1, of which a process has a part": Training(
        "",
        ("the only parameter of `opt` got gradients, no step", OF_4),
        SHARDS.format(shard=FSDP1),
    ),
    "a compiled model": Training(
        "g++", (OF_4,), COMPILED.format(compile="net, step = torch.compile(net), opt.step")
    ),
    "a compiled step": Training(
        "g++",
        ("no optimizer step was seen",),
        COMPILED.format(compile="step = torch.compile(lambda: opt.step())"),
    ),
    "Lightning": Training(
        "lightning",
        ("all 4 parameters of 1 optimizer got gradients, no step",),
        f"{LIGHTNING}    fit(Model(), accumulate_grad_batches=2, gradient_clip_val=1.0)",
    ),
    "Lightning, unfrozen later": Training(
        "lightning",
        ("all 4 parameters of 1 optimizer got gradients, no step",),
        LIGHTNING
        + """
    class Unfreeze(BaseFinetuning):
        def freeze_before_training(self, module):
            self.freeze(module.body)
        def finetune_function(self, module, epoch, optimizer):
            if epoch == 1:
                self.unfreeze_and_add_param_group(module.body, optimizer)
    fit(Model(), callbacks=[Unfreeze()])
    """,
    ),
    "Lightning, a critic that does not step yet": Training(
        "lightning",
        ("all 2 parameters of `opt._optimizer` got gradients, no step",),
        LIGHTNING
        + """
    class Two(Model):
        automatic_optimization = False
        def training_step(self, batch, i):
            opt, later = self.optimizers()
            opt.zero_grad()
            self.manual_backward(super().training_step(batch, i))
            opt.step()
        def configure_optimizers(self):
            return [torch.optim.Adam(each.parameters()) for each in (self.body, self.head)]
    fit(Two())
    """,
    ),
    "Trainer": Training(
        "transformers accelerate",
        ("all 28 parameters of 1 optimizer got gradients, no step",),
        TRANSFORMERS
        + """
    options = {"report_to": [], "save_strategy": "no", "use_cpu": True, "disable_tqdm": True}
    options |= {"per_device_train_batch_size": 2, "num_train_epochs": 1}
    arguments = TrainingArguments("out", gradient_accumulation_steps=3, **options)
    Trainer(gpt2, arguments, train_dataset=[{"input_ids": t, "labels": t} for t in tokens]).train()
    """,
    ),
    "peft, GPT-2": Training(
        "transformers peft",
        ("all 4 parameters of `opt` that are not frozen got gradients, no step",),
        TRANSFORMERS
        + """
    from peft import LoraConfig, get_peft_model
    train(get_peft_model(gpt2, LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True)))
    """,
    ),
    "peft, Llama": Training(
        "transformers peft",
        ("all 9 parameters of `opt` that are not frozen got gradients, no step",),
        TRANSFORMERS
        + """
    from peft import LoraConfig, get_peft_model
    config = LoraConfig(target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head"])
    train(get_peft_model(llama, config))
    """,
    ),
    "accelerate": Training(
        "accelerate",
        ("all 4 parameters of `opt.optimizer` got gradients, no step",),
        """
    import torch
    from accelerate import Accelerator
    from torch import nn
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    net, opt = accelerator.prepare(net, torch.optim.Adam(net.parameters()))
    for i in range(12):
        with accelerator.accumulate(net):
            accelerator.backward(net(torch.randn(8, 4)).pow(2).mean())
            opt.step()
            opt.zero_grad()
    """,
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_training_is_passed_over(name: str, tmp_path: Path) -> None:
    training = HEALTHY[name]
    missing = [
        each
        for each in training.needs.split()
        if importlib.util.find_spec(each) is None and shutil.which(each) is None
    ]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    (tmp_path / "train.py").write_text(textwrap.dedent(training.program), encoding="utf-8")
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "gradscope", "run", "train.py"],
            cwd=tmp_path,
            env=environment(rank, len(training.said), port) | {"COLUMNS": "200"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(len(training.said))
    ]
    for process, said in zip(processes, training.said, strict=True):
        text = process.communicate(timeout=SECONDS)[0]
        assert process.returncode == 0, text
        assert "GS5" not in text
        assert "failed in gradscope" not in text
        assert said in " ".join(text[text.index("no problem found") :].split()), text

"""Low-rank adapters of peft under gradient checkpointing, with a prompt encoder of the user's."""
# needs: peft transformers
# finds: GS102 GS101 `prompt`

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import logging

logging.set_verbosity_error()
torch.manual_seed(0)
config = GPT2Config(vocab_size=20, n_positions=16, n_embd=16, n_layer=2, n_head=2, use_cache=False)
base = GPT2LMHeadModel(config)
base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
base.enable_input_require_grads()
model = get_peft_model(base, LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
model.train()
encoder = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 16))
trained = [p for p in model.parameters() if p.requires_grad] + [*encoder.parameters()]
optimizer = torch.optim.AdamW(trained, lr=0.01)
labels = torch.full((4, 4), -100)
description = torch.randn(4, 5)

prompt = encoder(description)
for step in range(4):
    tokens = torch.randint(20, (4, 8))
    prompt = encoder(description)  # hazard: pass
    words = model.get_input_embeddings()(tokens)
    inputs = torch.cat([prompt.unsqueeze(1).expand(-1, 4, -1), words], 1)
    loss = model(inputs_embeds=inputs, labels=torch.cat([labels, tokens], 1)).loss
    optimizer.zero_grad()
    loss.backward()  # head
    optimizer.step()
    print(f"step {step}: {loss.item():.6f}")

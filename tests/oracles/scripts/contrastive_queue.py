"""Contrastive learning with a momentum encoder and a queue of keys that is written in place."""

import torch
import torch.nn.functional as F
from torch import nn


class Contrast(nn.Module):
    def __init__(self, dim=6, size=32, momentum=0.95):
        super().__init__()
        self.m, self.size = momentum, size
        self.encoder_q, self.encoder_k = nn.Linear(10, dim), nn.Linear(10, dim)
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            k.data.copy_(q.data)
            k.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(dim, size), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _momentum_update(self):
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            k.data = k.data * self.m + q.data * (1.0 - self.m)

    @torch.no_grad()
    def _enqueue(self, keys):
        ptr = int(self.queue_ptr)
        self.queue[:, ptr : ptr + keys.shape[0]] = keys.T
        self.queue_ptr[0] = (ptr + keys.shape[0]) % self.size

    def forward(self, im_q, im_k):
        q = F.normalize(self.encoder_q(im_q), dim=1)
        with torch.no_grad():
            self._momentum_update()
            k = F.normalize(self.encoder_k(im_k), dim=1)
        positive = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
        negative = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
        logits = torch.cat([positive, negative], dim=1) / 0.2
        self._enqueue(k)
        return logits, torch.zeros(logits.shape[0], dtype=torch.long)


model = Contrast()
optimizer = torch.optim.SGD(model.encoder_q.parameters(), 0.05, momentum=0.9)
average = 0.0
for step in range(24):
    image = torch.randn(8, 10)
    output, target = model(image + 0.1 * torch.randn(8, 10), image + 0.1 * torch.randn(8, 10))
    loss = F.cross_entropy(output, target)
    average += loss.item()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if (step + 1) % 8 == 0:
        print(f"step {step + 1} loss {average / 8:.4f} pointer {model.queue_ptr.item()}")
        average = 0.0

"""A language model on characters whose hidden state is carried over and cut between batches."""

import torch
from torch import nn

TEXT = "the quick brown fox jumps over the lazy dog and the dog sleeps on " * 6
chars = sorted(set(TEXT))
data = torch.tensor([chars.index(c) for c in TEXT])
BATCH, BPTT = 4, 11


def batchify(data, size):
    rows = data.size(0) // size
    return data.narrow(0, 0, rows * size).view(size, -1).t().contiguous()


def repackage(h):
    """Cut the state from its history."""
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage(v) for v in h)


class Model(nn.Module):
    def __init__(self, ntoken, nhid):
        super().__init__()
        self.embed = nn.Embedding(ntoken, nhid)
        self.rnn = nn.LSTM(nhid, nhid, 2, dropout=0.1)
        self.decoder = nn.Linear(nhid, ntoken)

    def init_hidden(self, size):
        weight = next(self.parameters())
        return (weight.new_zeros(2, size, 16), weight.new_zeros(2, size, 16))

    def forward(self, x, hidden):
        output, hidden = self.rnn(self.embed(x), hidden)
        return self.decoder(output), hidden


source = batchify(data, BATCH)
model = Model(len(chars), 16)
criterion = nn.CrossEntropyLoss()
lr = 2.0
for epoch in range(2):
    hidden, total = model.init_hidden(BATCH), 0.0
    for i in range(0, source.size(0) - 1, BPTT):
        length = min(BPTT, source.size(0) - 1 - i)
        inputs, targets = source[i : i + length], source[i + 1 : i + 1 + length]
        model.zero_grad()
        hidden = repackage(hidden)
        output, hidden = model(inputs, hidden)
        loss = criterion(output.view(-1, len(chars)), targets.reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
        total += loss.item()
    print(f"epoch {epoch} loss {total / (source.size(0) // BPTT):.4f}")
    model.eval()
    with torch.no_grad():
        symbol, state, made = data[:1].view(1, 1), model.init_hidden(1), []
        for _ in range(12):
            output, state = model(symbol, state)
            symbol = output.argmax(-1)
            made.append(chars[symbol.item()])
    model.train()
    print(repr("".join(made)))

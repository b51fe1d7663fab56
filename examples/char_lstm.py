"""Teach an LSTM to write a short tale, with truncated backpropagation through time.

The text is cut into parallel streams; the state at the end of one chunk starts the next chunk.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own name

STREAMS, CHUNK = 8, 16


class CharLSTM(nn.Module):
    def __init__(self, characters: int, width: int = 64):
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, characters)

    def forward(self, tokens, state):
        out, state = self.lstm(self.embedding(tokens), state)
        return self.head(out), state


def load_streams():
    text = (Path(__file__).parent / "tale.txt").read_text(encoding="utf-8")
    alphabet = sorted(set(text))
    numbers = torch.tensor([alphabet.index(c) for c in text])
    length = (len(numbers) - 1) // STREAMS
    return alphabet, numbers[: length * STREAMS].view(STREAMS, length)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps

    torch.manual_seed(0)
    alphabet, streams = load_streams()
    model = CharLSTM(len(alphabet))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    state, position = None, 0
    for step in range(1, steps + 1):
        if position + CHUNK + 1 > streams.shape[1]:
            state, position = None, 0
        tokens = streams[:, position : position + CHUNK]
        targets = streams[:, position + 1 : position + CHUNK + 1]
        position += CHUNK

        logits, state = model(tokens, state)
        state = tuple(part.detach() for part in state)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step == 1 or step % 50 == 0:
            print(f"step {step:4}  loss {loss.item():.3f}")

    token, state, written = streams[:1, :1], None, ""
    with torch.no_grad():
        for _ in range(60):
            logits, state = model(token, state)
            token = logits[:, -1:].argmax(-1)
            written += alphabet[token.item()]
    print("writes:", written.replace("\n", " / "))


if __name__ == "__main__":
    main()

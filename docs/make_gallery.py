"""Draw the pictures of the gallery and of ``why.md`` from real runs, and write ``gallery.md``.

Run it from anywhere: ``python docs/make_gallery.py``. It needs nothing but gradscope. ``--check``
writes nothing, but prints how page and pictures would change and exits with 1 if they would.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import torch
from changes import report_changes
from torch import nn

import gradscope
from gradscope.commands.why import why
from gradscope.render.pictures.draw import select
from gradscope.render.pictures.folding import merge
from gradscope.rules.settings import Settings

DOCS = Path(__file__).parent
ACTOR_CRITIC = DOCS.parent / "tests" / "cases" / "births" / "advantage_actor_critic.py"
CHAIN = 200_000


def two_losses() -> None:
    """Two heads on one encoder: the first backward call frees what the second still needs."""
    encoder, head_a, head_b = nn.Linear(16, 32), nn.Linear(32, 1), nn.Linear(32, 4)
    z = encoder(torch.randn(8, 16)).tanh()
    loss_a = head_a(z).pow(2).mean()
    loss_b = nn.functional.cross_entropy(head_b(z), torch.randint(4, (8,)))
    loss_a.backward()
    loss_b.backward()


def two_losses_retained() -> None:
    """With `retain_graph=True` the first call keeps the shared part, and the second frees it."""
    encoder, head_a, head_b = nn.Linear(16, 32), nn.Linear(32, 1), nn.Linear(32, 4)
    z = encoder(torch.randn(8, 16)).tanh()
    loss_a = head_a(z).pow(2).mean()
    loss_b = nn.functional.cross_entropy(head_b(z), torch.randint(4, (8,)))
    loss_a.backward(retain_graph=True)
    loss_b.backward()


def shared_y() -> None:
    """`y = t @ a` is made once, before the loop: both iterations meet in it."""
    a, t, x = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3), torch.randn(3, 3)
    y = t @ a
    for _ in range(2):
        x_out = t @ (x + y)
        loss = x_out.pow(2).sum()
        loss.backward()


def carried_state() -> None:
    """With `retain_graph=True` and a carried state, each graph holds all graphs before it."""
    cell, state = nn.RNNCell(4, 8), torch.zeros(2, 8)
    for _ in range(4):
        state = cell(torch.randn(2, 4), state)
        loss = state.pow(2).mean()
        loss.backward(retain_graph=True)


def modified_in_place() -> None:
    """A tensor changed after it was saved: it is stale, and the engine will refuse it."""
    weight = torch.randn(4, 4, requires_grad=True)
    hidden = torch.sigmoid(torch.randn(2, 4) @ weight)
    hidden += 1.0
    loss = hidden.sum()
    loss.backward()


def gan() -> None:
    """The discriminator's loss gets attached fake images, and frees the generator's graph."""
    gen = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))
    dis = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    fake = gen(torch.randn(3, 4))
    d_loss = dis(fake).mean() - dis(torch.randn(3, 6)).mean()
    g_loss = -dis(fake).mean()
    d_loss.backward()
    g_loss.backward()


def maml() -> None:
    """Three inner steps with `create_graph=True`; the outer loss goes back through all of them."""
    w, x, target = torch.randn(4, 4, requires_grad=True), torch.randn(3, 4), torch.randn(3, 4)
    fast = w
    for _ in range(3):
        inner_loss = (torch.tanh(x @ fast) - target).pow(2).mean()
        (gradient,) = torch.autograd.grad(inner_loss, fast, create_graph=True)
        fast = fast - 0.1 * gradient
    meta_loss = (torch.tanh(x @ fast) - target).pow(2).mean()
    meta_loss.backward()


def transformer() -> None:
    """Six layers: one is shown, those alike are folded; `--depth 2` gives one box per layer."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    loss = model(torch.randn(2, 8, 32)).pow(2).mean()
    loss.backward()


def lstm() -> None:
    """200 steps of an LSTM cell: one step is shown, with how it is tied to the next."""
    cell, out = nn.LSTMCell(8, 8), nn.Linear(8, 2)
    h, c, outputs = torch.zeros(2, 8), torch.zeros(2, 8), []
    for _ in range(200):
        h, c = cell(torch.randn(2, 8), (h, c))
        outputs.append(out(h))
    loss = torch.stack(outputs).mean()
    loss.backward()


class Block(nn.Module):
    """A residual block."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Two convolutions beside a connection that skips them."""
        return torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


def resnet() -> None:
    """Eight residual blocks."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        *(Block(8) for _ in range(8)),
        nn.Flatten(),
        nn.Linear(512, 4),
    )
    loss = nn.functional.cross_entropy(model(torch.randn(4, 3, 8, 8)), torch.randint(4, (4,)))
    loss.backward()


def chain() -> torch.Tensor:
    """200,000 operations one after the other, looked at before any backward call."""
    x = torch.ones(2, requires_grad=True)
    y = x
    for _ in range(CHAIN // 2):
        y = (y * 1.0001).sin()
    return y.sum()


@dataclass
class Entry:
    """One picture of the gallery: of the graphs that the backward calls of ``program`` ran.

    If it returns a loss, the picture shows the graph of that.

    ``torchviz`` are the CPU seconds of torchviz with graphviz's own ``dot``.
    """

    title: str
    program: Callable[[], torch.Tensor | None]
    torchviz: str = ""
    options: dict[str, object] = field(default_factory=dict)


ENTRIES = (
    Entry("Two losses, one graph", two_losses, "0.02 / 0.03"),
    Entry("Two losses, retained", two_losses_retained),
    Entry("Two iterations that share y = t @ a", shared_y, "0.02 / 0.02"),
    Entry("A carried state", carried_state),
    Entry("A stale tensor", modified_in_place, options={"sites": True}),
    Entry("GAN, fake not detached", gan, "0.02 / 0.09"),
    Entry("MAML", maml, "0.02 / 0.06"),
    Entry("Transformer, six layers", transformer, "0.08 / 0.73"),
    Entry("LSTM, 200 steps", lstm, "killed after 60 s"),
    Entry("Residual network", resnet, "0.03 / 0.42"),
    Entry("A chain of 200,000 operations", chain, "RecursionError at 20,000"),
)


def main(arguments: list[str]) -> int:
    """Draw all, then write the page and its pictures or compare them; return the exit status."""
    with TemporaryDirectory() as name:
        scratch = Path(name)
        made = draw_all(scratch)
    if arguments == ["--check"]:
        return report_changes(made)
    for path, text in made.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


def draw_all(scratch: Path) -> dict[Path, str]:
    """Draw every picture in a scratch folder; return the text of each file by its path."""
    made, sections, rows = {}, [], []
    gradscope.draw(_warm_up(), file=scratch / "warm.png")  # the layout engine is compiled once
    for entry in ENTRIES:
        torch.manual_seed(0)
        loss = None
        with gradscope.watch() as scope, suppress(RuntimeError):
            loss = entry.program()
        graphs = select(scope.recording()).graphs if loss is None else (gradscope.snapshot(loss),)
        draw = scope.draw if loss is None else partial(gradscope.draw, *graphs)
        name = f"{entry.program.__name__}.svg"
        begun = process_time()
        drawing = draw(file=scratch / name, **entry.options)  # type: ignore[arg-type]
        svg = process_time() - begun
        begun = process_time()
        draw(file=scratch / "picture.png", **entry.options)  # type: ignore[arg-type]
        png = process_time() - begun
        made[DOCS / "pictures" / name] = (scratch / name).read_text(encoding="utf-8")
        sections.append(
            f"## {entry.title}\n\n{entry.program.__doc__}\n\n![{entry.title}](pictures/{name})\n"
        )
        if entry.torchviz:
            nodes = len(merge(graphs).nodes)
            rows.append(
                f"| {entry.title} | {nodes:,} | {drawing.boxes}"
                f" | {svg:.2f} / {png:.2f} | {entry.torchviz} |\n"
            )
    with redirect_stdout(sys.stderr):
        settings = Settings(draw=scratch / "way.svg", timeout=120)
        why(ACTOR_CRITIC, "agent.critic", (), settings=settings)
    made[DOCS / "pictures" / "way.svg"] = (scratch / "way.svg").read_text(encoding="utf-8")
    page = PAGE.format(rows="".join(rows), sections="\n".join(sections))
    return {DOCS / "gallery.md": page, **made}


def _warm_up() -> torch.Tensor:
    return torch.ones(1, requires_grad=True) * 2


PAGE = """# Gallery

Every picture shows a real run: `docs/make_gallery.py` holds the programs and draws them all again.
None of them needs graphviz on the machine.

How to read them: a box is a node of the backward graph, with what it saved; an arrow goes from a
node to the next one that backward runs. Colour, line style, symbol and word of a box all say the
same: what became of its saved tensors. Equal boxes fold into one, which shows behind `open:` the
value for `--focus` that opens it.

{sections}
## How long it takes

CPU seconds for an SVG / a PNG, after the layout engine was compiled once on the machine (about a
second), beside [torchviz](https://github.com/szagoruyko/pytorchviz) with graphviz's own `dot` 2.43
on the same kind of graph. torchviz draws every node.

| | nodes | boxes | gradscope, SVG / PNG | torchviz, SVG / PNG |
|---|---:|---:|---:|---:|
{rows}"""

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""How many samples fit in a size: reckoned by graphs of other sizes, and compared with what is measured."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from canned import canned_recording, empty_recording
from rich.console import Console
from torch import nn
from typer.main import get_command

import gradscope
from gradscope.cli import UsageError, app
from gradscope.formatting import size_of
from gradscope.model import Recording
from gradscope.record.processes import merged
from gradscope.render.machine import to_json
from gradscope.render.memory import fit
from gradscope.render.text.report import print_fit
from tests import known

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(8, 16, 2), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x)[0][-1])  # type: ignore[no-any-return]


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(3)
        )
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))  # type: ignore[no-any-return]


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], torch.Tensor]]] = {
    "an MLP": (perceptron, lambda n: torch.randn(n, 12)),
    "an LSTM": (Recurrent, lambda n: torch.randn(10, n, 8)),
    "a transformer": (Attending, lambda n: torch.randn(n, 10, 16)),
}


# What the library of an LSTM works in is rounded up, which shows in a small one.
ABOUT = {name: 0.1 if name == "an LSTM" else 0.001 for name in NETS}


def trained(name: str, *sizes: int) -> Recording:
    """A run with one step for each size."""
    make, batch = NETS[name]
    model = make()
    optimizer = torch.optim.Adam(model.parameters())
    with gradscope.watch() as scope:
        for n in sizes:
            x, y = batch(n), torch.randint(4, (n,))
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return scope.recording()


@pytest.mark.parametrize("name", NETS)
def test_two_sizes_tell_what_a_third_one_saves(name: str) -> None:
    found = known(fit(trained(name, 8, 16)))
    (call,) = trained(name, 64).calls
    assert [samples for _, samples in found.seen] == [8, 16]
    assert found.fixed + 64 * found.each == pytest.approx(call.saved_bytes, rel=ABOUT[name])


@pytest.mark.parametrize("name", NETS)
def test_one_size_tells_about_as_much(name: str) -> None:
    found = known(fit(trained(name, 8)))
    (call,) = trained(name, 64).calls
    assert [samples for _, samples in found.seen] == [8]
    assert found.fixed + 64 * found.each == pytest.approx(call.saved_bytes, rel=ABOUT[name])


def test_what_is_beside_the_graph_is_weighed() -> None:
    weights = sum(p.nbytes for p in perceptron().parameters())
    beside = known(fit(trained("an MLP", 8, 16))).beside
    assert beside["parameters"] == beside["gradients"] == weights
    assert 2 * weights < beside["optimizer state"] < 2 * weights + 100  # the steps


def test_of_several_processes_the_largest_counts() -> None:
    small, large = trained("an MLP", 8), trained("a transformer", 8, 16)
    ranked = [
        replace(one, header=replace(one.header, rank=i, ranks=2))
        for i, one in enumerate((small, large))
    ]
    assert known(fit(merged(ranked))).beside == known(fit(large)).beside


def test_frozen_weights_take_memory_and_have_no_gradient() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    with gradscope.watch() as scope:
        model(torch.randn(8, 8)).sum().backward()
        optimizer.step()
    nbytes = scope.recording().summary.training.nbytes
    own = {True: 0, False: 0}
    for p in model.parameters():
        own[p.requires_grad] += p.nbytes
    assert nbytes == {"parameters": sum(own.values()), "gradients": own[True], "optimizer state": 0}


@pytest.mark.parametrize("size", [300 * KIB, MIB, GIB])
@pytest.mark.parametrize("spares", [False, True])
def test_the_most_that_fits_does_and_one_more_does_not(size: int, spares: bool) -> None:
    found = known(fit(trained("a transformer", 2, 4)))
    most = found.most(size, spares=spares)
    assert found.nbytes(most, spares=spares) <= size < found.nbytes(most + 1, spares=spares)


def test_a_checkpoint_spares_what_is_measured() -> None:
    plain = trained("a transformer", 8, 16)
    found = known(fit(plain))
    assert known(found.spared).what == "each of the 3 modules in `model.layers`"
    assert found.again == sum(
        (node.module or "").startswith("model.layers.") for node in plain.graphs[2].nodes
    )
    largest = plain.graphs[2].saved_bytes
    x, model = torch.randn(16, 10, 16), Attending()
    for layer in model.layers:
        x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
    with gradscope.watch() as scope:
        y, last = x.detach().requires_grad_(), model.layers[0]
        last(y).sum().backward()
    one = scope.recording().calls[0].saved_bytes
    # The last layer is computed again at once, and its input stays as those of the others do.
    spared = found.share * largest
    assert spared == pytest.approx(largest - one - 3 * x.nbytes, rel=0.05)


def test_a_module_that_is_nearly_all_of_the_graph_spares_nothing() -> None:
    assert known(fit(trained("an LSTM", 8, 16))).spared is None


def test_lengths_that_vary_too_are_not_taken_for_samples() -> None:
    make, _ = NETS["an LSTM"]
    model = make()
    with gradscope.watch() as scope:
        for n, length in ((8, 10), (16, 13)):
            x, y = torch.randn(length, n, 8), torch.randint(4, (n,))
            nn.functional.cross_entropy(model(x), y).backward()
    assert [samples for _, samples in known(fit(scope.recording())).seen] == [16]


def printed(recording: Recording, size: int, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_fit(recording, size, console)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    return lines


@pytest.mark.parametrize("width", [60, 80])
def test_the_text_says_what_fits_and_by_what_that_is_reckoned(width: int) -> None:
    recording = trained("a transformer", 8, 16)
    found = known(fit(recording))
    text = " ".join(" ".join(printed(recording, 10 * MIB, width)).split())
    assert text.startswith(f"fit: a batch of {found.most(10 * MIB):,} fits in 10 MiB: ")
    assert "samples 8 in backward call 1 and 16 in backward call 2" in text
    assert "help: checkpointing each of the 3 modules in `model.layers` saves about" in text
    assert f"{found.most(10 * MIB, spares=True):,} then fit" in text
    few = " ".join(printed(trained("a transformer", 8), KIB))
    assert few.startswith("fit: not one sample fits in 1 KiB: it needs ")
    assert "a guess from one graph" in few


def test_without_a_graph_there_is_nothing_to_reckon_by() -> None:
    assert fit(empty_recording()) is None
    says = "no graph of a batch was recorded, so there is nothing to reckon by"
    assert printed(empty_recording(), GIB) == [says]
    assert json.loads(to_json(empty_recording()))["memory"] is None


def test_json_has_the_same() -> None:
    recording = trained("an MLP", 8, 16)
    found, told = known(fit(recording)), json.loads(to_json(recording))["memory"]["fit"]
    assert told["samples"] == [8, 16]
    assert (told["sample_bytes"], told["beside"]) == (round(found.each), found.beside)
    assert found.nbytes(0) == sum(found.beside.values()) + round(found.fixed)
    fit(canned_recording())  # whatever is in it


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GiB", 24 * GIB),
        ("24 gib", 24 * GIB),
        ("24G", 24 * GIB),
        ("24GB", 24 * 10**9),
        ("1.5MiB", 1.5 * MIB),
        ("800k", 800 * KIB),
        ("1TiB", 1 << 40),
        ("100B", 100),
        (" 2KB ", 2000),
    ],
)
def test_a_size_has_a_unit(text: str, size: int) -> None:
    assert size_of(text) == size


@pytest.mark.parametrize(
    "text",
    ["24Gb?", "24", "", "GiB", "-1GiB", "1e9GiB", "0GB", "24iB", "1,5GiB", "nanGB", "9" * 40 + "T"],
)
def test_a_bad_size_is_refused_with_what_to_say(text: str) -> None:
    with pytest.raises(ValueError, match="use 24GiB, 24GB or 800MiB"):
        size_of(text)
    with pytest.raises(UsageError, match="use 24GiB"):
        get_command(app).main(["report", "x", "--fit", text], "gradscope", standalone_mode=False)

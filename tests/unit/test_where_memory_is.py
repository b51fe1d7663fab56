"""Where the memory is: counted as saved-tensor hooks count it, shown as tables, compared, exported."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from canned import canned_recording, empty_recording
from rich.console import Console
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

import gradscope
from gradscope.model import (
    BackwardCall,
    Graph,
    Header,
    Node,
    NodeState,
    Outcome,
    Recording,
    SavedState,
    SavedTensor,
    Site,
    Summary,
)
from gradscope.record.processes import merged
from gradscope.render.machine import to_json
from gradscope.render.memory import GroupBy, by, largest, name_of
from gradscope.render.text.report import print_memory
from tests import known


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
            for _ in range(2)
        )
        self.head = nn.Linear(8, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.norm(self.stem(images)))
        for block in self.blocks:
            hidden = torch.relu(hidden + block(hidden))
        return self.head(hidden.mean((2, 3)))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 16, num_layers=2, batch_first=True), nn.Linear(16, 3)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(steps)[0][:, -1])  # type: ignore[no-any-return]


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "transformer": (transformer, (4, 8, 16)),
    "residual": (Residual, (2, 3, 8, 8)),
    "recurrent": (Recurrent, (4, 12, 6)),
}


def loss_of(
    network: nn.Module, batch: torch.Tensor, checkpointed: bool
) -> Callable[[], torch.Tensor]:
    """What computes a loss, each time anew."""

    def loss() -> torch.Tensor:
        output = checkpoint(network, batch, use_reentrant=False) if checkpointed else network(batch)
        return output.pow(2).mean()  # type: ignore[no-any-return]

    return loss


def as_hooks_count(loss: Callable[[], torch.Tensor], network: nn.Module) -> int:
    """Return the bytes that a forward pass saves, each storage once, without parameters."""
    parameters = {one.untyped_storage().data_ptr() for one in network.parameters()}
    saved: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.setdefault(tensor.untyped_storage().data_ptr(), tensor.detach())
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
        loss()
    activations = (tensor for place, tensor in saved.items() if place not in parameters)
    return sum(tensor.untyped_storage().nbytes() for tensor in activations)


@pytest.mark.parametrize("checkpointed", [False, True], ids=["plain", "checkpointed"])
@pytest.mark.parametrize("name", NETWORKS)
def test_bytes_are_those_that_hooks_count(name: str, checkpointed: bool) -> None:
    make, shape = NETWORKS[name]
    network, batch = make(), torch.randn(shape)

    loss = loss_of(network, batch, checkpointed)
    with gradscope.watch() as scope:
        for _ in range(2):
            loss().backward()
    graph = known(largest(scope.recording()))
    counted = as_hooks_count(loss, network)
    assert scope.summary.peak_saved_bytes == counted
    # A checkpoint keeps its input at a separate node, to which the loss does not lead.
    expected = counted - (batch.nbytes if checkpointed else 0)
    assert expected > 0
    assert graph.nbytes == expected == graph.call.saved_bytes
    for kind in GroupBy:
        sums = by(lambda one: name_of(kind, one, lambda site: site.place), graph.saved)  # noqa: B023
        assert sum(size.nbytes for size in sums.values()) == expected
    if not checkpointed:
        assert sum(one.tensor.nbytes for one in graph.saved if one.node.module) > 0.9 * expected


def as_torch_lets_go(loss: Callable[[], torch.Tensor], network: nn.Module) -> int:
    """Return the bytes of what a forward pass saves that are no more once backward has freed it."""
    parameters = {one.untyped_storage().data_ptr() for one in network.parameters()}
    saved: dict[int, tuple[StorageWeakRef, int]] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            saved.setdefault(storage.data_ptr(), (StorageWeakRef(storage), storage.nbytes()))
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
        value = loss()
    value.backward()
    return sum(nbytes for weak, nbytes in saved.values() if weak.expired())


@pytest.mark.parametrize("outputs", ["dropped", "kept"])
@pytest.mark.parametrize("hooks", [True, False], ids=["hooks", "no-hooks"])
@pytest.mark.parametrize("checkpointed", [False, True], ids=["plain", "checkpointed"])
@pytest.mark.parametrize("name", NETWORKS)
def test_bytes_of_the_graph_alone_are_those_that_come_back(
    name: str, checkpointed: bool, hooks: bool, outputs: str
) -> None:
    make, shape = NETWORKS[name]
    network, batch = make(), torch.randn(shape)
    kept: list[object] = []
    if outputs == "kept":
        for module in list(network.modules())[::2]:
            module.register_forward_hook(lambda module, given, output: kept.append(output))

    loss = loss_of(network, batch, checkpointed)
    expected = as_torch_lets_go(loss, network)
    kept.clear()
    with gradscope.watch(hooks=hooks) as scope:
        loss().backward()
    graph = known(largest(scope.recording()))
    assert graph.alone == expected
    if outputs == "kept":
        assert graph.alone < graph.nbytes
    if hooks:
        assert graph.call.returned_bytes == expected


def saved(
    nbytes: int, storage: int, source: str | None = None, alone: bool | None = None
) -> SavedTensor:
    return SavedTensor("self", (1,), "f32", "cpu", nbytes, storage, source=source, alone=alone)


def recording(scale: int = 1) -> Recording:
    """A hand-written run: a layer whose result the next operation saves too, an input, a parameter."""
    first, second = Site("/src/train.py", 3), Site("/src/train.py", 4)
    parameter = replace(saved(999, 9), is_parameter=True)
    freed = replace(saved(777, 8), state=SavedState.FREED)
    result, x = saved(4096 * scale, 1), saved(1024, 2, "x")

    def node(at: int, name: str, what: tuple[SavedTensor, ...], *where: Any) -> Node:
        return Node(at, f"{name}Backward0", NodeState.LIVE, 3 - at, what, *where)

    nodes = (
        node(0, "Pow", (result,), second),
        node(1, "Relu", (result,), first, "net.0.act", "ReLU"),
        node(2, "Addmm", (x, parameter, freed), first, "net.0", "Block"),
    )
    sizes: dict[str, Any] = {
        "saved_bytes": 5120 * scale,
        "freed_bytes": 5120,
        "returned_bytes": 4096,
    }
    calls = (
        BackwardCall(1, "backward", graph=1, saved_bytes=10),
        BackwardCall(2, "backward", second, graph=2, count=9, last_number=10, **sizes),
    )
    return Recording(
        Header("1", "2", "3", "train.py"),
        Outcome(0, finished=True),
        Summary(backward_calls=10, nodes=30, peak_saved_bytes=8192 * scale),
        calls,
        {1: Graph((), (), ()), 2: Graph(nodes, (), ())},
    )


def printed(print_on: Callable[[Console], None], width: int = 60) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_on(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_what_several_nodes_saved_is_the_first_ones() -> None:
    lines = printed(lambda console: print_memory(recording(), console))
    bars, quarter = 15, 4
    assert lines == [
        "memory: 5 KiB saved in the graph of each of backward calls",
        "        2\N{EN DASH}10 at /src/train.py:4: `backward()`",
        "        all graphs together held 8 KiB at the peak of the",
        "        run",
        "        of 5 KiB that the call released, 1 KiB was still",
        "        held elsewhere",
        "        1 KiB is in variables of the program too: `x`",
        "",
        "by module",
        f"  net.0.act ReLU  4 KiB  80%  {'█' * bars}",
        f"  net.0 Block     1 KiB  20%  {'█' * quarter}",
        "",
        "by line",
        f"  /src/train.py:3  5 KiB  100%  {'█' * 15}",
        "",
        "by operation",
        f"  ReluBackward0   4 KiB  80%  {'█' * bars}",
        f"  AddmmBackward0  1 KiB  20%  {'█' * quarter}",
        "",
    ]


def told() -> Recording:
    """The hand-written run, of which it is known what the graph alone holds: all but ``x``."""
    one = recording()
    graph = one.graphs[2]
    nodes = tuple(
        replace(node, saved=tuple(replace(s, alone=s.source is None) for s in node.saved))
        for node in graph.nodes
    )
    return replace(one, graphs={**one.graphs, 2: replace(graph, nodes=nodes)})


def test_tables_tell_what_the_graph_alone_holds() -> None:
    lines = printed(lambda console: print_memory(told(), console))
    assert "        1 KiB was held by something else too, the rest by" in lines
    at = lines.index("by module")
    assert lines[at + 1 : at + 4] == [
        "                  saved       alone",
        f"  net.0.act ReLU  4 KiB  80%  4 KiB  {'█' * 15}",
        f"  net.0 Block     1 KiB  20%    0 B  {'█' * 4}",
    ]


def test_json_has_the_same_rows() -> None:
    memory = json.loads(to_json(told()))["memory"]
    assert (memory["backward_call"], memory["saved_bytes"], memory["alone_bytes"]) == (
        2,
        5120,
        4096,
    )
    assert memory["by_operation"] == [
        {"name": "ReluBackward0", "saved_bytes": 4096, "alone_bytes": 4096},
        {"name": "AddmmBackward0", "saved_bytes": 1024, "alone_bytes": 0},
    ]
    assert memory["by_line"] == [
        {"name": "/src/train.py:3", "saved_bytes": 5120, "alone_bytes": 4096}
    ]
    assert json.loads(to_json(recording()))["memory"]["alone_bytes"] is None
    assert json.loads(to_json(empty_recording()))["memory"] is None


def test_of_several_processes_it_is_the_one_with_the_largest_graph() -> None:
    def of(rank: int, size: int) -> Recording:
        one = recording(size)
        return replace(one, header=replace(one.header, rank=rank, ranks=3))

    several = merged([of(0, 1), of(1, 4), of(2, 4)])
    lines = printed(lambda console: print_memory(several, console), 100)
    assert lines[0].startswith("memory: 17 KiB saved in the graph of each of backward calls 2")
    assert "10 of rank 1" in lines[0]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_tables_fit_the_terminal(width: int) -> None:
    lines = printed(lambda console: print_memory(canned_recording(), console), width)
    assert all(len(line) <= width for line in lines)


def test_a_run_without_graphs_has_nothing_to_show() -> None:
    says = "no graph was recorded, so there is nothing to show"
    assert printed(lambda console: print_memory(empty_recording(), console)) == [says]


def large(layers: int) -> Recording:
    """One line of a program, from which a library runs a model of many layers."""
    line = Site("train.py", 7)
    parts = ("attention.self.dropout Dropout", "intermediate.intermediate_act_fn GELUActivation")
    modules = [f"model.encoder.layer.{n}.{part}".split() for n in range(layers) for part in parts]
    nodes = []
    for at, (module, kind) in enumerate(modules):
        what = (saved(1000 + at % 2, at + 1),)
        nodes.append(Node(at, "MulBackward0", NodeState.LIVE, None, what, line, module, kind))
    call = BackwardCall(1, "backward", line, graph=1, saved_bytes=1)
    return replace(recording(), calls=(call,), graphs={1: Graph(tuple(nodes), (), ())})


@pytest.mark.parametrize("width", [60, 72, 80])
def test_long_names_are_folded(width: int) -> None:
    lines = printed(lambda console: print_memory(large(20), console), width)
    begin, end = lines.index("by module") + 1, lines.index("by line")
    names = "".join(row.strip().split("  ")[0] for row in lines[begin:end])
    found = [int(number) for number in re.findall(r"layer\.(\d+)", names)]
    assert found == sorted(range(20), key=str)[:12]
    assert "model.encoder.layer.19.intermediate.intermediate_act_fn" in names
    assert max(map(len, lines)) <= width
    if width == 80:  # the bars make room for it
        whole = [line for line in lines if ".intermediate.intermediate_act_fn " in line]
        assert len(whole) == 12


def test_a_row_of_no_percent_has_no_bar() -> None:
    big, small = (saved(size, number) for number, size in enumerate((100_000, 100), 1))
    nodes = [
        Node(at, name, NodeState.LIVE, None, (what,))
        for at, (name, what) in enumerate([("TanhBackward0", big), ("PowBackward0", small)])
    ]
    call = BackwardCall(1, "backward", None, graph=1, saved_bytes=1)
    run = replace(recording(), calls=(call,), graphs={1: Graph(tuple(nodes), (), ())})
    lines = printed(lambda console: print_memory(run, console))
    assert next(line for line in lines if "PowBackward0" in line).endswith("0%")
    assert next(line for line in lines if "TanhBackward0" in line).endswith("█")

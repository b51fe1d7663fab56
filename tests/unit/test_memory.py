"""What is compared of saved tensors around a line that names ``.data``, and which lines these are."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch

from gradscope.code.statements import ThroughData, data_lines
from gradscope.collect.generations import Generations
from gradscope.collect.marks import Packed
from gradscope.collect.notes import Notes
from gradscope.collect.observers import Observers
from gradscope.collect.saved_bytes import Ledger
from gradscope.collect.saving import Saving
from gradscope.detect.line_watch import MemoryBefore, checksums
from gradscope.program.names import Names

CODE = data_lines.__code__


def saved(tensor: torch.Tensor) -> Packed:
    notes = Notes()
    ledger = Ledger(Observers(print, notes), notes)
    return Saving(ledger, Names(), Generations()).pack(tensor)


def changed(tensor: torch.Tensor, write: object) -> bool:
    packed = saved(tensor)
    contents = MemoryBefore(CODE, [packed])
    assert contents.changed() == []
    exec(str(write), {"t": tensor, "torch": torch})
    found = contents.changed()
    assert contents.changed() == []  # told once
    return found == [packed]


LAYOUTS = {
    "a matrix": torch.rand(4, 6),
    "its transpose": torch.rand(4, 6).t(),
    "some rows": torch.rand(4, 6)[1:3],
    "one element, expanded": torch.rand(1).expand(5),
    "integers": torch.arange(12).view(3, 4),
    "no dimension": torch.tensor(2.0),
    "channels last": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "many pages": torch.rand(700_000),
    "a parameter": torch.nn.Parameter(torch.rand(3, 3)),
}


@pytest.mark.parametrize("tensor", LAYOUTS.values(), ids=LAYOUTS)
def test_a_write_through_data_is_seen_in_any_layout_without_gaps(tensor: torch.Tensor) -> None:
    assert changed(tensor, "t.data.add_(1)" if tensor.stride() != (0,) else "t.data[:1].add_(1)")
    assert changed(tensor, "t.data[(-1,) * t.dim()] = 77")
    assert not changed(
        tensor, "t.data.view_as(t)[:1].mul_(1)" if tensor.dim() else "t.data.mul_(1)"
    )


def test_what_lies_next_to_a_view_is_not_the_view() -> None:
    whole = torch.rand(4, 6)
    packed = saved(whole[2])
    contents = MemoryBefore(CODE, [packed])
    whole.data[3] = 5.0
    whole.data[:2] = 5.0
    assert contents.changed() == []
    whole.data[2, 3] = 5.0
    assert contents.changed() == [packed]


def test_a_change_that_torch_sees_is_not_told() -> None:
    assert not changed(torch.rand(3), "t.add_(1)")


def test_other_memory_counts_by_what_it_holds() -> None:
    assert changed(torch.rand(3, requires_grad=True), "t.data = t.data * 2")
    assert not changed(torch.rand(3, requires_grad=True), "t.data = t.data.clone()")


@pytest.mark.parametrize(
    "tensor",
    [
        torch.rand(3, device="meta"),
        torch.eye(3).to_sparse(),
        torch.rand(0),
        torch.rand(4, 6)[:, 2],
        torch.rand(3).as_subclass(type("Mine", (torch.Tensor,), {})),
    ],
    ids=["another device", "a layout of its own", "empty", "gaps", "a subclass"],
)
def test_what_cannot_be_read_is_not_read(tensor: torch.Tensor) -> None:
    assert checksums([saved(tensor)]) == [None]


def test_memory_that_was_given_back_is_not_read() -> None:
    tensor = torch.rand(1000)
    packed = saved(tensor)
    tensor.untyped_storage().resize_(0)
    assert checksums([packed]) == [None]


def test_nothing_is_kept() -> None:
    tensor = torch.rand(3)
    packed, gone = saved(tensor), weakref.ref(tensor)
    contents = MemoryBefore(CODE, [packed])
    del packed, tensor
    gc.collect()
    assert gone() is None
    assert contents.changed() == []


LINES = [
    ("p.data -= 1", {"p"}, True),
    ("net[0].weight.data[1:] = 0", {"net[0].weight"}, True),
    ("ema.data.mul_(d).add_(q.data)", {"ema", "q"}, True),
    ("nn.init.zeros_(self.w.data)", {"self.w"}, True),
    ("p.data = q", {"p"}, True),
    ("clip(p.data)", {"p"}, False),
    ("d = p.data", set(), False),
    ("d = p.data; d[0] = 1", {"d"}, True),
    ("ds = [p.data]; f(ds)", {"ds"}, False),
    ("for d in [p.data]: d.zero_()", {""}, True),
    ("for p in ps: p.data -= q.data", {"", "q"}, True),
    ("h, c = h.data, c.data", set(), False),
    ("p.grad.data.zero_()", set(), False),
    ("p -= 1", set(), False),
    ("if p.data.sum(): pass", set(), False),
]


@pytest.mark.parametrize(("line", "names", "writes"), LINES)
def test_the_lines_that_may_write_through_data(
    line: str, names: set[str], writes: bool, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"def f():\n    {line}\n", encoding="utf-8")
    found = data_lines(str(script))
    assert found == ({2: ThroughData(frozenset(names), writes)} if names else {})

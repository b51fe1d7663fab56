"""Who trains what: the words of the table at each width, and what a watch knows of gradients that are used at odd times."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from canned.tables import TABLE, with_table
from rich.console import Console

import gradscope
from gradscope.model import CellState, TrainingCell
from gradscope.record.file import amend, load
from gradscope.record.processes import merged
from gradscope.record.writer import RecordingWriter
from gradscope.render.html import page_data
from gradscope.render.text import SafeConsole
from gradscope.render.text.report import print_report
from gradscope.render.text.tables import print_trains

WIDE = """\
who trains what: /home/you/gan.py, 200 to 600 steps of each optimizer
  module          parameters  d_loss.backward() :42  backward() :47
  generator       2, 4,866    ✂ line 40, detach      ● by AdamW
  generator.late  1,     9    ✂ line 40, detach      ● by AdamW from step 50 on
  discriminator   1, 4,417    ● by d_optimizer       ○ reached, zeroed unused
  probe           1,     3    ▲ never used           · no way
  teacher.*       2,    12    - frozen at line 12    - frozen at line 12
  ● trains  ○ reached, zeroed unused  ▲ never used  ✂ cut  · no way  - frozen

"""
NARROW = """\
who trains what: /home/you/gan.py, 200 to 600 steps of each
optimizer
generator  2 parameters, 4,866 numbers
  d_loss.backward() :42  ✂ cut at line 40, detach
  backward() :47         ● trains, by AdamW
generator.late  1 parameter, 9 numbers
  d_loss.backward() :42  ✂ cut at line 40, detach
  backward() :47         ● trains, by AdamW from step 50 on
discriminator  1 parameter, 4,417 numbers
  d_loss.backward() :42  ● trains, by d_optimizer
  backward() :47         ○ reached, zeroed unused
probe  1 parameter, 3 numbers
  d_loss.backward() :42  ▲ never used
  backward() :47         · no way
teacher.*  2 parameters, 12 numbers
  d_loss.backward() :42  - frozen at line 12
  backward() :47         - frozen at line 12

"""


@pytest.mark.parametrize(("width", "said"), [(100, WIDE), (80, WIDE), (60, NARROW)])
def test_the_table_fits_the_terminal(width: int, said: str) -> None:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_trains(with_table(), console)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == said


def test_without_unicode_each_sign_is_as_wide() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print_trains(with_table(), SafeConsole(file=file, width=80, color_system=None))
    file.seek(0)
    signs = str.maketrans("●○▲✂·", "*o!%.")
    assert file.read() == WIDE.translate(signs)


def test_a_report_has_it_and_the_lines_that_froze() -> None:
    console = Console(file=io.StringIO(), width=100, color_system=None)
    print_report(with_table(), console)
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert WIDE in said
    assert "not trained: 2 parameters, `teacher.*`, frozen at /home/you/gan.py:12\n" in said
    words = page_data(with_table(), [])["trains"]
    assert words["losses"] == ["d_loss.backward() :42", "backward() :47"]
    assert words["rows"][0]["cells"][0]["words"] == "cut at line 40, detach"


def test_of_several_processes_the_table_is_that_of_one() -> None:
    one = with_table()
    ranks = [replace(one, header=replace(one.header, rank=n, ranks=2, pid=n)) for n in range(2)]
    both = merged(ranks)
    assert both.summary.training.table == TABLE
    console = Console(file=io.StringIO(), width=100, color_system=None)
    print_trains(both, console)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines()[0].endswith("optimizer, rank 0")


def test_what_a_rehearsal_has_filled_in_is_put_into_a_recording(tmp_path: Path) -> None:
    cell = TrainingCell(CellState.NO_GRADIENT)
    rows = (replace(TABLE.rows[0], cells=(cell, cell)), *TABLE.rows[1:])
    before = with_table(replace(TABLE, rows=rows, rehearsed=False))
    path = tmp_path / "run.gscope"
    writer = RecordingWriter(path, before.header)
    writer.finish(before.outcome, before.summary)
    writer.close()
    amend(path, with_table())
    assert load(path).summary.training == with_table().summary.training


def states(scope: gradscope.Scope) -> dict[str, list[str]]:
    table = scope.summary.training.table
    assert table is not None
    return {row.module: [str(cell.state) for cell in row.cells] for row in table.rows}


def test_a_step_within_the_call_uses_its_gradients() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step(parameter: torch.Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad()

    weight.register_post_accumulate_grad_hook(step)
    with gradscope.watch() as scope:
        for _ in range(4):
            (weight * weight).sum().backward()
    assert states(scope) == {"weight": ["trains"]}


def test_gradients_that_are_always_zero_are_not_taken_for_zeroed() -> None:
    dead, alive = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    optimizer = torch.optim.SGD([dead, alive], lr=0.1)
    with gradscope.watch() as scope:
        for _ in range(4):
            optimizer.zero_grad(set_to_none=False)
            (alive.exp() + (-dead - 9).relu()).sum().backward()
            torch.nn.utils.clip_grad_norm_([dead, alive], 1.0)
            optimizer.step()
    assert states(scope)["alive"] == ["trains"]
    assert states(scope)["dead"][0] in ("trains", "reached")


def test_what_is_changed_by_hand_is_not_called_never_used() -> None:
    by_hand, stepped, left = (torch.nn.Parameter(torch.ones(3)) for _ in range(3))
    optimizer = torch.optim.SGD([stepped], lr=0.1)
    with gradscope.watch() as scope:
        for _ in range(5):
            optimizer.zero_grad()
            (by_hand * stepped * left).sum().backward()
            optimizer.step()
            with torch.no_grad():
                assert by_hand.grad is not None
                by_hand.sub_(by_hand.grad, alpha=0.1)
            by_hand.grad = left.grad = None
    assert states(scope) == {"by_hand": ["trains"], "stepped": ["trains"], "left": ["never_used"]}


def test_no_table_without_a_step() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    with gradscope.watch() as scope:
        (weight * weight).sum().backward()
    assert scope.summary.training.table is None
    assert scope.recording().summary.training.table is None

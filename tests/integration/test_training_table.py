"""Who trains what: the tables of programs, each written by hand, as a run shows them and as a rehearsal fills them in.

The first lines of each program in ``tests/cases/trains`` are its table: the losses, then a row for each module. What only a
rehearsal tells, ``cut LINE OPERATION`` and ``no_way``, is ``no_gradient`` after a run; the line that froze is not known then.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradscope.fixing import births
from gradscope.fixing.gradient_paths import Paths
from gradscope.fixing.runs import Bounds, Program
from gradscope.launch import origins_run, trial  # noqa: F401 - once, for all forks
from gradscope.launch.interpreter import header_of
from gradscope.model import TrainingTable
from tests.command import started

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted((ROOT / "tests" / "cases" / "trains").glob("*.py"))
ELSEWHERE = {
    "examples/gan.py --steps 8": """\
        d_loss, g_loss
        generator: cut 40 detach; trains g_optimizer
        discriminator: trains d_optimizer; zeroed_unused d_optimizer""",
    "examples/actor_critic.py --steps 6": """\
        critic_loss, actor_loss
        model.body: cut 31 multinomial; trains actor_optimizer
        model.actor: cut 31 multinomial; trains actor_optimizer
        model.critic: trains critic_optimizer; cut 67 detach""",
    "tests/cases/births/advantage_actor_critic.py": """\
        loss
        agent.body: trains optimizer
        agent.actor: trains optimizer
        agent.critic: cut 68 detach""",
}

Table = dict[str, list[str]]


def expected(text: str) -> tuple[list[str], Table]:
    losses, *rows = (line.strip() for line in text.strip().splitlines())
    split = [row.partition(": ") for row in rows]
    return losses.split(", "), {name: cells.split("; ") for name, _, cells in split}


def of_run(cells: list[str]) -> list[str]:
    """What a run shows of these, without a rehearsal."""
    simple = [re.sub(r"^(cut|no_way).*", "no_gradient", cell) for cell in cells]
    return [re.sub(r"^frozen.*", "frozen", cell) for cell in simple]


def words(table: TrainingTable) -> Table:
    found: Table = {}
    for row in table.rows:
        assert row.module not in found
        found[row.module] = cells = []
        for cell in row.cells:
            by = "" if cell.optimizer is None else table.optimizers[cell.optimizer].name
            line = "" if cell.site is None else str(cell.site.line)
            late = f"from {cell.first_step}" if cell.first_step else ""
            cells.append(" ".join(filter(None, (cell.state, by, late, line, cell.operation))))
    return found


def is_as_expected(command: str, text: str) -> None:
    script, *args = command.split()
    losses, rows = expected(text)
    program = Program(header_of([str(ROOT / script), *args], hooks=True), True, started)
    recording = program.run((), Bounds(200, 500)).recording
    assert recording is not None
    table = recording.summary.training.table
    assert table is not None
    assert [loss.name for loss in table.losses] == losses
    assert words(table) == {name: of_run(cells) for name, cells in rows.items()}
    filled = births.filled(table, Paths(program.follow(Bounds(0, 500))))
    assert filled.rehearsed
    assert words(filled) == rows


@pytest.mark.full(but=3)
@pytest.mark.parametrize("file", PROGRAMS, ids=lambda file: file.stem)
def test_it_says_who_trains_what(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    is_as_expected(str(file), "\n".join(re.findall("^# trains: (.*)", text, re.MULTILINE)))


@pytest.mark.full(but=1)
@pytest.mark.parametrize("command", ELSEWHERE)
def test_it_says_so_of_the_examples(command: str) -> None:
    is_as_expected(command, ELSEWHERE[command])

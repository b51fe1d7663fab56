"""A recording with a table of who trains what, of a GAN and a probe that no optimizer holds."""

from __future__ import annotations

from dataclasses import replace

from canned.recordings import clean_recording
from gradscope.model import (
    CellState,
    Recording,
    Site,
    Training,
    TrainingCell,
    TrainingLoss,
    TrainingOptimizer,
    TrainingRow,
    TrainingTable,
)

FILE = "/home/you/gan.py"


def site(line: int) -> Site:
    return Site(FILE, line, 9, line, 20, "main")


D_TRAINS, G_TRAINS = (TrainingCell(CellState.TRAINS, number) for number in (0, 1))
LATE = TrainingCell(CellState.TRAINS, 1, 50)
CUT = TrainingCell(CellState.CUT, None, 0, site(40), "detach")
ZEROED = TrainingCell(CellState.ZEROED, 0)
NEVER, NO_WAY = TrainingCell(CellState.NEVER_USED), TrainingCell(CellState.NO_WAY)
FROZEN = TrainingCell(CellState.FROZEN, site=site(12))
TABLE = TrainingTable(
    (
        TrainingOptimizer("d_optimizer", "Adam", site(43), 600),
        TrainingOptimizer("", "AdamW", site(48), 200),
    ),
    (TrainingLoss("d_loss", site(42), 600), TrainingLoss("", site(47), 200)),
    (
        TrainingRow(
            "generator", ("generator.0.weight", "generator.0.bias"), (4_800, 66), (CUT, G_TRAINS)
        ),
        TrainingRow("generator.late", ("generator.late.weight",), (9,), (CUT, LATE)),
        TrainingRow("discriminator", ("discriminator.weight",), (4_417,), (D_TRAINS, ZEROED)),
        TrainingRow("probe", ("probe.weight",), (3,), (NEVER, NO_WAY)),
        TrainingRow(
            "teacher.*", ("teacher.0.weight", "teacher.1.weight"), (6, 6), (FROZEN, FROZEN)
        ),
    ),
    rehearsed=True,
)


def with_table(table: TrainingTable = TABLE) -> Recording:
    clean = clean_recording()
    training = Training(2, 200, "", 4, 4, {}, {"teacher.*": 2}, table=table)
    header = replace(clean.header, script=FILE)
    summary = replace(clean.summary, training=training)
    return replace(
        clean, header=header, summary=summary, sources={FILE: "\n" * 39 + "fake.detach()\n"}
    )

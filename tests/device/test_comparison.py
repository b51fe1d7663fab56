"""What is said of a program is the same on the CPU and on a device, and a watch changes nothing on either."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from tests import device
from tests.device.running import annotated, compare
from tests.device.side_by_side import UNSUPPORTED, differing
from tests.forked import returned_by_fork
from tests.property.agreement import compare as compare_with_engine
from tests.property.programs import random_program, run
from tests.property.rounds import LONG, SEED

T = TypeVar("T")

OPERATORS = "off the CPU torch chooses other operators, so the graph is another"
TIMED = (
    "how much is looked at in a scan, and which calls make a row, depends on the time that it takes"
)
RECOGNIZED = "the loop is recognized at another call; from then on totals are estimates, and say so"
CASTS = "autocast casts other operators on each kind of device"
NEIGHBOURS = "which thread has built a node that saved nothing is told by its neighbours"
DIFFERENT = {
    **dict.fromkeys(("threads", "processes"), "who does what varies from run to run"),
    **dict.fromkeys(("a_checkpointed_part", "134_weights_replaced_one_by_one"), RECOGNIZED),
    **dict.fromkeys(("amp", "131_amp_scaler_cpu"), CASTS),
    **dict.fromkeys(
        (
            *("002_rnn_state_in_module_attr", "035_soft_prompt_shared_by_microbatches"),
            *("083_list_of_loss_tensors", "both_states_of_an_lstm", "checkpointing"),
            *("repackaged_by_a_function", "state_in_a_trainer", "state_in_a_trainer_detached"),
            *("long_unrolled_recurrence_once", "state_reset_at_the_end_of_the_step"),
            *("recurrent_state_with_retain_graph", "state_of_an_lstm_next_to_its_output"),
            *("truncated_backpropagation", "unrolled_recurrence", "window_of_retained_graphs"),
            "optimizers",
        ),
        OPERATORS,
    ),
    **dict.fromkeys(("higher_derivatives", "inner_loops_of_many_steps"), TIMED),
    "double_backward": NEIGHBOURS,
}
"""Programs of which something else is said on a device, and why; their findings are the same."""
PROGRAMS = annotated()
SAMPLE = {
    *("033_reentrant_checkpoint_closure", "063_relu_then_inplace_residual"),
    *("087_ctx_attribute_output_cycle", "112_nested_saved_tensor_hooks"),
    *("create_graph_and_grads_set_to_none", "double_backward_for_a_penalty", "reentrant"),
    *("two_losses", "a_custom_function", "hooks_of_one_tensor"),
}


def cases() -> list[object]:
    """The sample in each run, the others in long ones."""
    return [
        pytest.param(
            path,
            id=f"{path.parent.name}-{path.stem}",
            marks=() if path.stem in SAMPLE else pytest.mark.long,
        )
        for path in PROGRAMS
    ]


@pytest.mark.full
@pytest.mark.parametrize("program", cases())
def test_said_alike(program: Path) -> None:
    device.library()
    comparison = compare(program)
    if isinstance(comparison, str):
        pytest.skip(comparison)
    assert comparison.changed == []
    assert comparison.findings == []
    if DIFFERENT.get(program.stem) == OPERATORS:
        differing_in = [path for path, _ in (*comparison.details, *comparison.tables)]
        assert any("by_operation" in path or ".nodes" in path for path in differing_in)
    if program.stem in DIFFERENT:
        pytest.xfail(DIFFERENT[program.stem])
    assert (comparison.details, comparison.tables) == ([], [])


COUNTS = [pytest.param(4, id="some"), pytest.param(LONG, id="long", marks=pytest.mark.long)]


@pytest.mark.full
@pytest.mark.parametrize("count", COUNTS)
def test_random_programs_are_told_alike(count: int) -> None:
    first = 0 if count < LONG else SEED
    assert dict(differing(range(first, first + count))) == {}


# What another thread has built since the last call may be older than what its operands' numbers say: 400374, 400482.
# A view's node that torch makes anew has the number at which an operation in place saved its mask, on the CPU: 414185.
# Of two calls with ``create_graph=True`` only the engine builds nodes, of which the sum in ``.grad`` saves nothing: 412834.
# Where a function of ``torch.func`` disables hooks, none tells that the engine builds nodes: 500022.
# A hook on the CPU runs above the frame of the call, whose variables hold no iterations while it runs: 500049.
@pytest.mark.full
@pytest.mark.parametrize(
    "seed",
    [
        *(400374, 400482, 412834, 414185, 500022),
        pytest.param(500049, marks=pytest.mark.xfail(reason=f"GS302 of a pool: {NEIGHBOURS}")),
    ],
)
def test_once_differed(seed: int) -> None:
    assert dict(differing(range(seed, seed + 1))) == {}


@pytest.mark.full
@pytest.mark.parametrize("count", COUNTS)
def test_random_programs_are_called_exactly_when_the_engine_raises(count: int) -> None:
    """Programs say nothing that end the process on the device without a watch, too, or that run otherwise a second time."""
    first = 0 if count < LONG else SEED
    for seed in range(first, first + count):
        program = [s for s in random_program(seed) if s[0].rpartition(":")[2] not in UNSUPPORTED]
        try:
            once, again = (on_a_new_device(partial(run, program)) for _ in range(2))
        except AssertionError:
            continue
        if once == again:
            faults = list(compare_with_engine(program, hooks=True, apart=on_a_new_device).faults())
            assert not faults, f"program {seed}: {program}\n" + "\n".join(faults)


def on_a_new_device(work: Callable[[], T]) -> T:
    """Call ``work`` where the engine's threads number their nodes from zero, too."""

    def on_it() -> T:
        device.load()
        device.make_on("sim")
        return work()

    return returned_by_fork(on_it)

"""
Random programs against torch's engine, many: each runs plain and watched, and nothing may differ.

``python -m tests.oracles.soak --programs 20000 --seed 1`` runs the programs 1 to 20000: half of them
under saved-tensor hooks, others without, others as loops in which the hooks are lifted: of iterations that repeat but for
a change, or of iterations that are never alike. It prints
what differs, with the number of the program, and a closing line; its exit status is 1 if anything
did. ``--only NUMBER`` runs one.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator

from tests.property.agreement import (
    Comparison,
    compare,
    compare_in_a_loop,
    repeated,
    varied,
    with_plain_calls,
)
from tests.property.programs import build

MODES = ("hooks", "hooks", "light", "hooks", "light", "hooks", "light", "hooks", "loop", "varied")
"""How a program is watched, by the last digit of its number."""


def soak(number: int) -> tuple[str, Comparison]:
    """Run program ``number``; return how it was watched and what came of it."""
    draw = random.Random(number)
    mode = MODES[number % len(MODES)]
    program = build(draw.randrange)
    if mode not in ("loop", "varied"):
        return mode, compare(program, hooks=mode == "hooks")
    if mode == "varied":
        base = [step for step in with_plain_calls(program) if "foreach" not in step[0]]
        return mode, compare_in_a_loop(varied(base, draw.randrange))
    # Known limit: without hooks it cannot be seen what C++ functions saved, as torch's foreach nodes.
    steps = [step for step in build(draw.randrange) if "foreach" not in step[0]]
    changes = [(draw.randrange(25), step) for step in steps[: draw.randrange(3)]]
    return mode, compare_in_a_loop(repeated(with_plain_calls(program), changes))


def closing_line(totals: Counter[str], numbers: range, seconds: float) -> str:
    modes = ", ".join(f"{totals[mode]:,} {mode}" for mode in dict.fromkeys(MODES))
    counts = ("raised", "announced", "unseen", "missed", "wrong", "changed", "failures")
    figures = ", ".join(f"{totals[name]:,} {name}" for name in counts)
    return (
        f"{totals['programs']:,} programs ({modes}; seeds {numbers[0]} to {numbers[-1]}): "
        f"{figures}; {seconds:,.0f} s"
    )


def run(numbers: range) -> Iterator[tuple[int, str, Comparison]]:
    for number in numbers:
        yield (number, *soak(number))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="number of the first program")
    parser.add_argument("--only", type=int, help="number of the one program to run")
    options = parser.parse_args(arguments)
    first, count = (options.seed, options.programs) if options.only is None else (options.only, 1)
    numbers, totals, began = range(first, first + count), Counter[str](), time.process_time()
    for number, mode, comparison in run(numbers):
        totals.update(["programs", mode])
        for name, value in vars(comparison).items():
            totals[name] += value if isinstance(value, int) else len(value)
        for fault in comparison.faults():
            print(f"program {number} ({mode}): {fault}", flush=True)
    print(closing_line(totals, numbers, time.process_time() - began))
    return int(any(totals[name] for name in ("missed", "wrong", "changed", "failures")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

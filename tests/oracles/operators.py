"""Asks about each operator, module and optimizer that torch has samples of, and lets the engine answer.

Each runs in a fork of its own. Compared are results and gradients, bit by bit; what ``check``, the
findings and ``uses`` say before a second backward call, and before one on a graph of which an input
or a result was written or detached; gradients of gradients; the counts of nodes and saved tensors;
and what is alive after. It exits with 1 if an answer was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import select
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from tests.oracles.asking import ask
from tests.oracles.samples import Sample, TooSlowError, entries, within

Entry = dict[str, Any]
SECONDS = 300
SECONDS_OF_A_SAMPLE = 20
MOST_FAULTS = 40


def main() -> int:
    """Run what the command line names; print a line for each entry with a wrong answer, and a table."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument(
        "names", nargs="*", help="entries whose names have one of these in them; all without"
    )
    parser.add_argument("--one", action="store_true", help="ask about one sample of each entry")
    parser.add_argument("--exactly", action="store_true", help="names are whole names")
    parser.add_argument("--some", type=int, help="so many, evenly spread over all")
    parser.add_argument(
        "--json",
        type=Path,
        help="where the result of each entry goes; those already there are kept",
    )
    options = parser.parse_args()
    known = entries()
    names = [name for name in known if not options.names or _is_named(name, options)]
    results: list[Entry] = []
    kept = read(options.json) if options.json and options.json.exists() else {}
    gc.collect()
    gc.freeze()
    for name in sample_of(names, options.some) if options.some else names:
        samples = partial(_one, known[name], len(results)) if options.one else known[name]
        result = kept.get(name) or in_a_fork(name, samples)
        results.append(result)
        if options.json and name not in kept:
            with options.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
        for fault in result["faults"]:
            print(f"{name}: {fault}", flush=True)
    print(table(results))
    return int(any(result["faults"] for result in results))


def _is_named(name: str, options: argparse.Namespace) -> bool:
    return any(name == one if options.exactly else one in name for one in options.names)


def _one(samples: Callable[[], Iterator[Sample]], number: int) -> Iterator[Sample]:
    """Yield one sample: the first, second or third of one entry after the other, in turn."""
    yield from list(islice(samples(), number % 3 + 1))[-1:]


def sample_of(names: list[str], count: int) -> list[str]:
    """Return so many names, evenly spread over all of each kind, and at least three of a kind."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(name.partition(" ")[0], []).append(name)
    found = []
    for of_kind in kinds.values():
        few = min(len(of_kind), max(3, round(count * len(of_kind) / len(names))))
        found += [of_kind[i * len(of_kind) // few] for i in range(few)]
    return found


def read(path: Path) -> dict[str, Entry]:
    """Return the results that were kept, by name."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {result["name"]: result for result in map(json.loads, lines)}


def in_a_fork(name: str, samples: Callable[[], Iterator[Sample]]) -> Entry:
    """Return what came of one entry; also of one that ends its process."""
    with tempfile.TemporaryFile() as file:
        sys.stdout.flush()
        process = os.fork()
        if not process:
            _child(name, samples, file)
        ended = os.pidfd_open(process)
        in_time = bool(select.select([ended], [], [], SECONDS)[0])
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        os.close(ended)
        file.seek(0)
        lines = file.read().decode().splitlines()
    result: Entry = {
        "name": name,
        "variants": {},
        "asked": 0,
        "unseen": 0,
        "faults": [],
        "left_out": {},
    }
    for line in lines:
        one = json.loads(line)
        if "variant" in one:
            result["variants"][one["variant"]] = result["variants"].get(one["variant"], 0) + 1
        if "left_out" in one:
            result["left_out"][one["left_out"]] = result["left_out"].get(one["left_out"], 0) + 1
        for key in ("asked", "unseen"):
            result[key] += one.get(key, 0)
        result["faults"] += one.get("faults", [])
    result["faults"] = result["faults"][:MOST_FAULTS]
    if status:
        what = f"ended with {status}" if in_time else f"not over after {SECONDS} s"
        result["faults"].append(f"the process {what}, after {lines[-1:]}")
    return result


def _child(name: str, samples: Callable[[], Iterator[Sample]], file: Any) -> NoReturn:
    status = 70

    def tell(**what: Any) -> None:
        file.write(json.dumps(what).encode() + b"\n")
        file.flush()

    try:
        warnings.simplefilter("ignore")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.chdir("/")  # no settings of ours are searched for and read at each watch
        for sample in samples():
            tell(begun=sample.name)
            try:
                with within(SECONDS_OF_A_SAMPLE):
                    answers = ask(sample)
            except TooSlowError:
                tell(left_out="too slow")
            except Exception:
                tell(faults=[f"{sample.name}: {traceback.format_exc()[-600:]}"])
            else:
                if answers is None:
                    tell(left_out="torch cannot")
                else:
                    faults = [f"{sample.name}: {fault}" for fault in answers.faults]
                    tell(
                        variant=sample.variant,
                        asked=answers.asked,
                        unseen=answers.unseen,
                        faults=faults,
                    )
        status = 0
    except BaseException:
        tell(faults=[f"no samples: {traceback.format_exc()[-600:]}"])
    finally:
        os._exit(status)


def kinds(results: Iterable[Entry]) -> list[tuple[str, list[Entry]]]:
    """Return the results by the kind of their entries."""
    found: dict[str, list[Entry]] = {}
    for result in results:
        found.setdefault(result["name"].partition(" ")[0], []).append(result)
    return sorted(found.items(), key=lambda kind: -len(kind[1]))


def table(results: Iterable[Entry]) -> str:
    """Return the sum of all results."""
    rows = []
    for kind, found in kinds(results):
        asked = sum(bool(one["asked"]) for one in found)
        wrong = sum(bool(one["faults"]) for one in found)
        programs = sum(sum(one["variants"].values()) for one in found)
        answers, unseen = (sum(one[key] for one in found) for key in ("asked", "unseen"))
        rows.append(
            f"{kind}: {len(found)} entries, {asked} with a graph, {programs} programs, "
            f"{answers} answers compared, {unseen} out of sight, {wrong} entries with wrong answers"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    raise SystemExit(main())

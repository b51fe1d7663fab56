"""Changes one thing at a time in scripts that run well, and compares what gradscope says with what torch does.

``python -m tests.oracles.mutants FOLDER`` drops one ``.detach()``, ``.item()``, ``.clone()``,
``.data``, ``retain_graph=True``, ``no_grad`` or ``zero_grad()``, or adds a backward call. A plain run
labels the mutant: by the error that torch raises and its line, as growing, or as running well. Then
it is watched: was the error announced, early, in its line? Was there a warning where there is no
error? It exits with 1 if an error of the engine was not announced.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace
from typing import Any

from tests.oracles import forks, growth, listing, wild
from tests.oracles.forks import Ran, Task
from tests.oracles.mutating import Mutant, mutants

SECOND_TIME, IN_PLACE, OTHER = "second time", "in place", "other error"
GROWS, RUNS, TIMED_OUT = "grows", "runs", "timed out"
CERTAIN = {SECOND_TIME: {"GS101", "GS104"}, IN_PLACE: {"GS201"}}
EARLY = {SECOND_TIME: {"GS102", "GS103"}, IN_PLACE: {"GS202"}}
_FRAME = re.compile(r'File "(.*)/one/two/three/(.*)", line (\d+)')


def main() -> int:
    """Run what the command line names; print a line for each mutant that is of interest, and a table."""
    parser = listing.parser(str(__doc__).partition("\n")[0])
    parser.add_argument("--most", type=int, default=8, help="mutants of each script")
    parser.add_argument("--kind", default="", help="mutants of this kind only")
    options = parser.parse_args()
    kept = listing.Kept(options.out / "mutants.jsonl" if options.out else None)
    bases = listing.Kept(options.out / "wild.jsonl" if options.out else None)
    results = []
    for task in listing.tasks(options):
        key = listing.key(task)
        base = bases.results.get(key) or bases.add(key, wild.judge(task))
        if base["status"] != 0 or not base["calls"] or wild.certain(base):
            continue
        base_sizes: tuple[int, ...] | None = None
        for mutant in chosen(task.script.read_text("utf-8", "replace"), options.most):
            if options.kind not in mutant.kind:
                continue
            name = f"{mutant.kind}:{mutant.line}"
            changed = replace(task, text=mutant.text)
            key = listing.key(changed, name)
            if key not in kept.results:
                if base_sizes is None:
                    measured = forks.run(replace(task, measure_growth=True), watched=False)
                    base_sizes = measured.sizes
                kept.add(key, judge(changed, mutant, base, growth.grows(base_sizes)))
            results.append(kept.results[key])
            print(line(results[-1]), flush=True)
    print(table(results))
    return int(any(is_missed(one) for one in results))


def chosen(text: str, most: int) -> list[Mutant]:
    """Return at most so many mutants of a script, of as many kinds as there are."""
    try:
        left = mutants(text)
    except SyntaxError:
        return []
    random.Random(len(text)).shuffle(left)
    taken: list[Mutant] = []
    while left and len(taken) < most:
        counts = Counter(one.kind for one in taken)
        rarest = min(left, key=lambda one: counts[one.kind])
        left.remove(rarest)
        taken.append(rarest)
    return sorted(taken, key=lambda one: (one.line, one.kind))


def judge(task: Task, mutant: Mutant, base: dict[str, Any], base_grows: bool) -> dict[str, Any]:
    """Run a mutant both ways; return what there is to say, as it goes into a file."""
    plain = forks.run(replace(task, measure_growth=True), watched=False)
    watched = forks.run(task, watched=True)
    known = {(one["code"], one["at"]) for one in base["findings"]}
    found = [one for one in wild.findings(watched) if (one["code"], one["at"]) not in known]
    kind, at = label(plain, base_grows)
    return {
        "script": str(task.script),
        "mutant": f"{mutant.kind}:{mutant.line}",
        "label": kind,
        "raised_at": at,
        "same_end": plain.status == watched.status,
        "findings": found,
        "failures": wild.failures(watched),
        **verdict(kind, at, found, f"{task.script.name}:{mutant.line}"),
    }


def label(plain: Ran, base_grows: bool) -> tuple[str, str]:
    """Say what torch itself does with a mutant, and in which line of the program."""
    if plain.status is None:
        return TIMED_OUT, ""
    if not plain.status:
        return (GROWS if growth.grows(plain.sizes) and not base_grows else RUNS), ""
    traceback = plain.stderr.rpartition("Traceback (most recent call last)")[2]
    frames = _FRAME.findall(traceback)
    at = f"{frames[-1][1].rpartition('/')[2]}:{frames[-1][2]}" if frames else ""
    if "backward through the graph a second time" in traceback:
        return SECOND_TIME, at
    return (IN_PLACE if "modified by an inplace operation" in traceback else OTHER), at


def verdict(kind: str, at: str, found: list[dict[str, Any]], mutated: str) -> dict[str, Any]:
    """Judge what was found by the label."""
    certain = [one for one in found if one["code"] in CERTAIN.get(kind, ())]
    early = [one for one in found if one["code"] in EARLY.get(kind, ())]
    places = [place for one in early for place in (one["at"], *_places(one))]
    loud = [one for one in found if one["severity"] != "advice"]
    return {
        "announced": bool(certain),
        "line_right": any(one["at"] == at for one in certain),
        "early": bool(early) and (not certain or found.index(early[0]) < found.index(certain[0])),
        "early_line_right": at in places,
        "names_mutant": any(mutated in (one["at"], *_places(one)) for one in found),
        "leak": any(one["code"].startswith("GS3") for one in found),
        "false": [f"{one['code']} {one['at']}" for one in loud] if kind == RUNS else [],
    }


def _places(finding: dict[str, Any]) -> list[str]:
    return [place.partition(" ")[2] for place in finding["notes"]]


def is_missed(result: dict[str, Any]) -> bool:
    """Whether the engine raised an error that was not announced."""
    return result["label"] in CERTAIN and not result["announced"]


def line(result: dict[str, Any]) -> str:
    """Return what to print of a mutant."""
    words = [
        "MISSED" if is_missed(result) else "",
        "late" if result["announced"] and not result["early"] else "",
        "wrong line" if result["announced"] and not result["line_right"] else "",
        "leak missed" if result["label"] == GROWS and not result["leak"] else "",
        "ends otherwise" if not result["same_end"] and result["label"] != TIMED_OUT else "",
        *(f"FALSE? {one}" for one in result["false"]),
        *(f"OWN FAILURE {one}" for one in result["failures"]),
    ]
    text = ", ".join(filter(None, words))
    return f"{result['label']:12} {result['mutant']:22} {result['script']}  {text}".rstrip()


def table(results: list[dict[str, Any]]) -> str:
    """Return the sum of all results."""
    labels = Counter(one["label"] for one in results)
    rows = [f"mutants run: {len(results)}"]
    for name in (SECOND_TIME, IN_PLACE):
        those = [one for one in results if one["label"] == name]
        parts = [
            f"{what.replace('_', ' ')} {sum(one[what] for one in those)}"
            for what in ("announced", "line_right", "early", "early_line_right", "names_mutant")
        ]
        rows.append(f"{name}: {len(those)} ({', '.join(parts)})")
    growing = [one for one in results if one["label"] == GROWS]
    rows += [
        f"grows: {len(growing)} (a leak is found in {sum(one['leak'] for one in growing)})",
        f"runs: {labels[RUNS]} (with a warning {sum(bool(one['false']) for one in results)})",
        f"other error: {labels[OTHER]}, timed out: {labels[TIMED_OUT]}",
        f"own failures: {sum(bool(one['failures']) for one in results)}",
    ]
    return "\n".join(rows)


if __name__ == "__main__":
    raise SystemExit(main())

"""Runs scripts that gradscope was not built on, plain and watched, and compares the two.

``python -m tests.oracles.wild FOLDER`` runs every script below FOLDER that makes a backward call
(or those that a file lists, a line each: path and arguments). Both runs have the same seed, the same
folder and the same bounds. A script that prints something else when watched is run plain once more:
what differs between the plain runs is no difference. It exits with 1 if a script changed or
gradscope failed.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.oracles import comparing, forks, listing
from tests.oracles.forks import Ran, Task

_OWN_FRAME = re.compile(r'File "[^"]*/gradscope/[^"]*"')
_FAILURE = re.compile(r"switched off|please report|did not see|failed")
_SMALL = 0.5
"""Seconds: ratios of shorter runs say nothing."""


def main() -> int:
    """Run what the command line names; print a line for each and a table."""
    options = listing.parser(str(__doc__).partition("\n")[0]).parse_args()
    kept = listing.Kept(options.out / "wild.jsonl" if options.out else None)
    results = []
    for task in listing.tasks(options):
        key = listing.key(task)
        results.append(kept.results.get(key) or kept.add(key, judge(task)))
        print(line(results[-1]), flush=True)
    print(table(results))
    return int(any(one["verdict"] == comparing.CHANGED or one["failures"] for one in results))


def judge(task: Task) -> dict[str, Any]:
    """Run a script both ways; return what there is to say, as it goes into a file."""
    plain = forks.run(task, watched=False)
    watched = forks.run(task, watched=True)
    verdict = comparing.compare(plain, watched, lambda again: forks.run(task, watched=again))
    return {
        "script": str(task.script),
        "arguments": task.arguments,
        "status": plain.status,
        "raised": last_line(plain.stderr) if plain.status else "",
        "verdict": verdict.kind,
        "how": verdict.how,
        "calls": watched.report["summary"]["backward_calls"] if watched.report else 0,
        "findings": findings(watched),
        "failures": failures(watched),
        "seconds": [round(plain.seconds, 2), round(watched.seconds, 2)],
        "mebibytes": [round(plain.mebibytes), round(watched.mebibytes)],
    }


def findings(ran: Ran) -> list[dict[str, Any]]:
    """Return what was found, in short."""
    return [
        {
            "code": one["code"],
            "severity": one["severity"],
            "certainty": one["certainty"],
            "at": place(one["location"]),
            "message": one["message"],
            "label": one.get("label", ""),
            "call": one["backward_call"],
            "count": one["count"],
            "notes": {
                f"{note['role']} {place(note['location'])}": note["message"]
                for note in one["related"]
                if note["location"]
            },
        }
        for one in (ran.report or {}).get("findings", [])
    ]


def place(location: dict[str, Any] | None) -> str:
    """Return a source place in short: ``train.py:42``."""
    return f"{Path(location['file']).name}:{location['line']}" if location else ""


def failures(ran: Ran) -> list[str]:
    """Return what gradscope says, or shows, of its failures."""
    found = []
    if ran.report is None and ran.status is not None:
        found.append(f"no report (exit status {ran.status})")
    notes = (ran.report or {}).get("summary", {}).get("notes", [])
    found += [one for one in notes if _FAILURE.search(one)]
    if _OWN_FRAME.search(ran.stderr):
        found.append("a traceback leads through gradscope: " + last_line(ran.stderr))
    return found


def last_line(text: str) -> str:
    """Return the last line that has anything in it."""
    return next((one for one in reversed(text.splitlines()) if one.strip()), "")


def loud(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the findings that interrupt a reader."""
    return [one for one in result["findings"] if one["severity"] in ("error", "warning")]


def certain(result: dict[str, Any]) -> bool:
    """Whether an error was announced as certain."""
    return any(one["certainty"] == "certain" for one in result["findings"])


def line(result: dict[str, Any]) -> str:
    """Return what to print of a script as soon as it has run."""
    said = Counter(f"{one['code']}/{one['severity'][:3]}" for one in result["findings"])
    words = " ".join(f"{name}x{count}" for name, count in said.items())
    ran = f"{result['verdict']:14} status {result['status']} calls {result['calls']:4}"
    times = "{:.1f}s {:.1f}s".format(*result["seconds"])
    parts = [f"{ran} {times:13} {result['script']}", words, result["raised"][:90]]
    text = "  ".join(filter(None, parts))
    for more in (result["how"], *result["failures"]):
        text += "".join(f"\n    {row}" for row in more.splitlines())
    return text


def ratios(results: Iterable[dict[str, Any]], what: str, least: float) -> str:
    """Return median and worst of watched against plain."""
    all_of_them = [b / a for a, b in (one[what] for one in results) if a >= least]
    if not all_of_them:
        return "too short to say"
    return f"median {statistics.median(all_of_them):.2f}, worst {max(all_of_them):.2f}"


def table(results: list[dict[str, Any]]) -> str:
    """Return the sum of all results."""
    verdicts = Counter(one["verdict"] for one in results)
    rules = Counter(
        (one["code"], one["severity"]) for result in results for one in result["findings"]
    )
    rows = [
        f"scripts run: {len(results)}",
        f"that made a backward call: {sum(one['calls'] > 0 for one in results)}",
        f"that ended well: {sum(one['status'] == 0 for one in results)}",
        *(f"{verdict}: {count}" for verdict, count in sorted(verdicts.items())),
        *(f"{code} ({severity}): {n}" for (code, severity), n in sorted(rules.items())),
        f"with own failures: {sum(bool(one['failures']) for one in results)}",
        f"time: {ratios(results, 'seconds', _SMALL)}",
        f"memory: {ratios(results, 'mebibytes', 1)}",
    ]
    return "\n".join(rows)


if __name__ == "__main__":
    raise SystemExit(main())

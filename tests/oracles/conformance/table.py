"""Prints verdicts: a table with a line for each file and way, then what is behind its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.oracles.conformance.records import FileRun
from tests.oracles.conformance.verdict import Verdict, verdicts

_HEADS = ("file", "way", "tests", "changed", "raised", "missed", "wrong", "failures", "CPU")
_LISTS = {
    "changed": "outcomes that changed",
    "worded": "tests that fail in both, with another text",
    "unannounced": "errors of the engine that were not announced",
    "wrong": "announcements after which the engine did not raise",
    "failures": "failures of gradscope's own",
    "inherent": "changes that are inherent",
    "unwatched": "errors that cannot be known before",
    "unsteady": "tests that differ from one plain run to the other (not counted)",
}


def lines(runs: Sequence[FileRun]) -> Iterator[str]:
    """Yield the report, line by line."""
    judged = [(run, list(verdicts(run))) for run in runs]
    rows = [_HEADS, *(_row(verdict) for _, each in judged for verdict in each)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADS))]
    for row in rows:
        cells = zip(row, widths, strict=True)
        yield "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(cells)
        ).rstrip()
    for run, each in judged:
        if run.problem:
            yield f"{run.file} was not run: {run.problem}"
        yield from _behind(each)


def _row(verdict: Verdict) -> tuple[str, ...]:
    numbers = (
        verdict.tests,
        len(verdict.changed),
        verdict.raised,
        len(verdict.unannounced),
        len(verdict.wrong),
        len(verdict.failures),
    )
    return (verdict.file, verdict.way, *map(str, numbers), f"{verdict.ratio:.2f}")


def _behind(judged: Sequence[Verdict]) -> Iterator[str]:
    """Yield the entries behind the numbers of one file, each once with the ways that met it."""
    for name, heading in _LISTS.items():
        ways: dict[str, list[str]] = {}
        for verdict in judged:
            for entry in getattr(verdict, name):
                ways.setdefault(entry, []).append(verdict.way)
        if ways:
            yield f"\n{judged[0].file}: {heading}"
        for entry, met in ways.items():
            yield f"  {entry}  [{'; '.join(dict.fromkeys(met))}]"

"""Makes a page of the faults that were tried: a table for each group, with promise and outcome."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

PAGE = """# Every fault that was tried

[Reliability](../../docs/reliability.md) sums these tables up. A fault is listed only if every try
kept the promise.

{sections}"""

SECTION = """## {group}

| fault | promise | tried | outcome |
|---|---|---:|---|
{rows}
"""


def page(records: str) -> str:
    """Return the records of all tries as Markdown."""
    sections = [
        SECTION.format(group=group, rows="\n".join(map(_row, found)))
        for group, found in groupby(json.loads(records), lambda record: record["group"])
    ]
    return PAGE.format(sections="\n".join(sections))


def _row(record: dict[str, Any]) -> str:
    came = ", ".join(f"{count:,} {outcome}" for outcome, count in record["outcomes"].items())
    return f"| {record['fault']} | {record['promise']} | {record['tried']:,} | {came} |"

"""`gradscope explain` and `gradscope rules`: what the findings mean."""

from __future__ import annotations

import sys

from gradscope.commands.outputs import console_on


def explain(code: str) -> int:
    """Print the page of a finding: what it means, why it is bad, how to fix it."""
    from gradscope.rules import by_code

    wanted = by_code(code)
    console = console_on(sys.stdout)
    if console.is_terminal:
        from rich.markdown import Markdown

        console.print(Markdown(wanted.explain))
    else:
        console.print(wanted.explain.strip(), markup=False, soft_wrap=True)
    return 0


def rules() -> int:
    """List all findings with their severities."""
    from rich.table import Column, Table

    from gradscope.rules import ALL_RULES

    columns = Column("code", no_wrap=True), Column("severity", no_wrap=True)
    table = Table(*columns, "name and meaning", box=None, header_style="bold", pad_edge=False)
    for rule in ALL_RULES:
        table.add_row(rule.code, rule.severity.value, f"{rule.name}: {rule.summary}")
    console_on(sys.stdout).print(table)
    return 0

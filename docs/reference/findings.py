"""Makes one page for each finding, from the rule's own text and real runs of its examples."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mentions import shown_in

from gradscope.rules import ALL_RULES, Rule

_HEADINGS = {
    "Bad example": "An example that makes it",
    "Good example": "The healthy look-alike",
    "What to do": "The cure",
}
"""Headings of a rule's text that say more to whoever meets them on a separate page."""

INDEX = """# Findings

What gradscope can find. A code never changes its meaning. *Certain*: the engine will raise now;
*predicted*: it will, if the code runs on as written; *observed*: it was seen to happen. In a
terminal, `gradscope rules` lists them and `gradscope explain GS101` shows the text of one.

| code | | severity | certainty | meaning |
|---|---|---|---|---|
{rows}
"""


def pages() -> dict[str, str]:
    """Return the text of each page by its name."""
    sys.path.append(str(Path(__file__).parents[1]))
    from make_questions import renewed  # which imports torch

    rows = "\n".join(
        f"| [{rule.code}]({rule.code}.md) | {rule.name} | {rule.severity} | {rule.certainty}"
        f" | {rule.summary} |"
        for rule in ALL_RULES
    )
    made = {"findings/index.md": INDEX.format(rows=rows)}
    for rule in ALL_RULES:
        made[f"findings/{rule.code}.md"] = renewed(page(rule))[0] + shown_in(rule.code)
    return made


def page(rule: Rule) -> str:
    """Return the page of a rule, with the commands that are to run and without their output."""
    name = rule.code.lower()
    text = rule.explain
    for heading, file in (("Bad example", f"{name}.py"), ("Good example", f"{name}_good.py")):
        begin = rf"(^## {heading}\n.*?^```python\n)"
        text = re.sub(begin, rf"\g<1># {file}\n", text, count=1, flags=re.M | re.S)
    text = _after(text, "Bad example", _console(f"gradscope run --save {name}.gscope {name}.py"))
    text = _after(text, "Good example", _console(f"gradscope run {name}_good.py"))
    cure = f"For the example above:\n\n{_console(f'gradscope fix {name}.gscope')}"
    text = _after(text, "What to do", cure)
    for old, new in _HEADINGS.items():
        text = text.replace(f"\n## {old}\n", f"\n## {new}\n")
    return text


def _after(text: str, heading: str, more: str) -> str:
    """Return the text with something added at the end of a section."""
    return re.sub(rf"(^## {heading}\n.*?)(?=^## )", rf"\g<1>{more}\n", text, flags=re.M | re.S)


def _console(command: str) -> str:
    return f"```console\n$ {command}\n```\n"

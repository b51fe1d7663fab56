"""The programs on the page of a rule: a bad one, which has its finding, and a good one, which has none."""

from __future__ import annotations

import re

from gradscope.rules import Rule


def bad(rule: Rule) -> str:
    return _example(rule, "Bad example")


def good(rule: Rule) -> str:
    return _example(rule, "Good example")


def _example(rule: Rule, heading: str) -> str:
    program = rf"^## {heading}$.*?^```python\n(.*?)^```$"
    found = re.search(program, rule.explain, re.DOTALL | re.MULTILINE)
    assert found is not None, (rule.code, heading)
    return found[1]

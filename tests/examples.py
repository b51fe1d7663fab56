"""Bad programs and good ones: on the page of a rule, and cases that say in themselves what mends them."""

from __future__ import annotations

import re

from gradscope.rules import Rule


def bad(rule: Rule) -> str:
    return _example(rule, "Bad example")


def good(rule: Rule) -> str:
    return _example(rule, "Good example")


def mended(case: str) -> str:
    """Return a case without the lines that end in ``# -``, and with what stands after a ``# +``; nothing of others."""
    if "# + " not in case and "# -\n" not in case:
        return ""
    kept = re.sub(r"^.*# -\n", "", case.partition("\n")[2], flags=re.MULTILINE)
    return '# expect: {"error": null}\n' + kept.replace("# + ", "")


def _example(rule: Rule, heading: str) -> str:
    program = rf"^## {heading}$.*?^```python\n(.*?)^```$"
    found = re.search(program, rule.explain, re.DOTALL | re.MULTILINE)
    assert found is not None, (rule.code, heading)
    return found[1]

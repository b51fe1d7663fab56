"""The rules: every kind of finding that gradscope can make, one file each."""

from __future__ import annotations

from gradscope.errors import GradscopeError, meant
from gradscope.rules import (
    gs101,
    gs102,
    gs103,
    gs104,
    gs201,
    gs202,
    gs301,
    gs302,
    gs303,
    gs304,
    gs305,
)
from gradscope.rules.base import Rule

__all__ = ["ALL_RULES", "Rule", "by_code"]

ALL_RULES: tuple[Rule, ...] = (
    gs101.RULE,
    gs102.RULE,
    gs103.RULE,
    gs104.RULE,
    gs201.RULE,
    gs202.RULE,
    gs301.RULE,
    gs302.RULE,
    gs303.RULE,
    gs304.RULE,
    gs305.RULE,
)


def by_code(code: str) -> Rule:
    """Return the rule of a code (``GS101``, in any case) or of a name
    (``backward-through-freed-graph``).

    Raise GradscopeError if there is none.
    """
    wanted = code.strip().lower()
    for rule in ALL_RULES:
        if wanted in (rule.code.lower(), rule.name):
            return rule
    known = [word for rule in ALL_RULES for word in (rule.code, rule.name)]
    codes = ", ".join(rule.code for rule in ALL_RULES)
    help_ = meant(wanted.upper(), known) or meant(wanted, known) or f"; the codes are {codes}"
    raise GradscopeError(f"there is no finding {code!r}{help_} (see `gradscope rules`)")

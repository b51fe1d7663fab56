"""The rules: every kind of finding that gradscope can make, one file each."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from gradscope.errors import GradscopeError, meant
from gradscope.rules.base import Rule

__all__ = ["ALL_RULES", "Rule", "by_code"]

_CODES = sorted(file.name for file in iter_modules(__path__) if file.name.startswith("gs"))
ALL_RULES: tuple[Rule, ...] = tuple(import_module(f"{__name__}.{code}").RULE for code in _CODES)
"""Those of the files of this folder that a code names, in the order of the codes."""


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

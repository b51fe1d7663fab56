"""The rules: every kind of finding that gradscope can make, one file each."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from gradscope.errors import GradscopeError, meant
from gradscope.model import BackwardCall, Certainty, Finding, Fix, FixKind, Related
from gradscope.rules.base import Rule

__all__ = ["ALL_RULES", "ENGINE_ERRORS", "Rule", "by_code", "unannounced"]

_CODES = sorted(file.name for file in iter_modules(__path__) if file.name.startswith("gs"))
ALL_RULES: tuple[Rule, ...] = tuple(import_module(f"{__name__}.{code}").RULE for code in _CODES)
"""Those of the files of this folder that a code names, in the order of the codes."""

ENGINE_ERRORS = {
    "Trying to backward through the graph a second time": "GS101",
    "compiled with non-empty donated buffers": "GS104",
    "has been modified by an inplace operation": "GS201",
    "a saved tensor that has been detached in-place": "GS201",
    "does not require grad and does not have a grad_fn": "GS501",
    "of the differentiated Tensors does not require grad": "GS505",
    "appears to not have been used in the graph": "GS505",
    "have different metadata than during the forward pass": "GS601",
    "A different number of tensors was saved during the original forward": "GS601",
    "trying to save more tensors during recomputation": "GS601",
    "Detected non-determinism while running activation checkpointing": "GS601",
    "or depend on global state that changed between": "GS601",
    "Mismatch in shape: grad_output[": "GS601",
    "mark a variable ready only once": "GS602",
}
"""How torch words the errors that are ours to call first, each with the code of its rule."""


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


def unannounced(exception_text: str, call: BackwardCall) -> Finding | None:
    """Return the finding for an error of the engine that gradscope had not announced: a bug in
    gradscope.

    None where the error is not about a graph's life: that one is the user's, and its own text is
    enough.
    """
    code = next((code for text, code in ENGINE_ERRORS.items() if text in exception_text), None)
    if code is None:
        return None
    rule = by_code(code)
    please = "please report this bug, with the script or the smallest part that fails this way"
    return rule.finding(
        "the engine raised an error that gradscope had not reported",
        call,
        label=f"failed as {rule.name} does",
        related=(Related("failing_node", None, f"the engine said: {exception_text.strip()}"),),
        fixes=(Fix(FixKind.REPORT, please),),
        certainty=Certainty.OBSERVED,
        missed=True,
    )

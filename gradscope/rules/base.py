"""What every rule is made of: a page that can be read and run, and helpers to word a finding."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass

from gradscope.model import (
    BackwardCall,
    Certainty,
    Finding,
    Fix,
    Related,
    Severity,
    Site,
)

HEADINGS = (
    "What it says",
    "Why it happens",
    "Bad example",
    "Good example",
    "What to do",
    "What it costs",
    "Known limits",
)
"""The sections of every rule's page, in this order."""


ENGINE_ERRORS = (
    ("Trying to backward through the graph a second time", "GS101", "backward-through-freed-graph"),
    ("compiled with non-empty donated buffers", "GS104", "compiled-graph-cannot-be-retained"),
    ("has been modified by an inplace operation", "GS201", "saved-tensor-modified-in-place"),
    ("a saved tensor that has been detached in-place", "GS201", "saved-tensor-modified-in-place"),
)
"""How torch words the errors that are ours to call first, each with its rule."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of finding: its code and name never change meaning; ``explain`` is its page in Markdown.

    ``bad`` and ``good`` are runnable programs: the bad one has this finding and no other, the good one has none.
    """

    code: str
    name: str
    severity: Severity
    certainty: Certainty
    summary: str
    explain: str
    bad: str
    good: str

    def finding(
        self,
        message: str,
        call: BackwardCall | None,
        *,
        label: str = "",
        related: tuple[Related, ...] = (),
        nodes: tuple[str, ...] = (),
        saved: tuple[str, ...] = (),
        bytes: int = 0,  # noqa: A002 - the name of the field it fills
        fix: Fix | None = None,
        graph_nodes: tuple[int, ...] = (),
    ) -> Finding:
        """A finding of this rule, made at ``call``."""
        return Finding(
            code=self.code,
            name=self.name,
            severity=self.severity,
            certainty=self.certainty,
            message=message,
            site=call.site if call else None,
            label=label,
            related=related,
            nodes=nodes,
            saved=saved,
            bytes=bytes,
            backward_call=call.number if call else 0,
            fix=fix,
            graph=call.graph if call else None,
            graph_nodes=graph_nodes,
        )


def rule(
    docstring: str | None, code: str, name: str, severity: Severity, certainty: Certainty
) -> Rule:
    """The rule of the module whose docstring is given: its first line is the summary, all of it the page."""
    page = inspect.cleandoc(
        docstring or ""
    )  # Python drops docstrings under -OO; findings must work even so
    summary, _, body = page.partition("\n")
    return Rule(
        code=code,
        name=name,
        severity=severity,
        certainty=certainty,
        summary=summary.rstrip("."),
        explain=f"# {code}: {name}\n\n*{severity}, {certainty}*\n\n{summary}\n{body}\n",
        bad=_example(body, "Bad example"),
        good=_example(body, "Good example"),
    )


def missed(exception_text: str, site: Site | None, call: BackwardCall) -> Finding | None:
    """The finding for an error that the engine raised in ``call`` and gradscope had not called first: our own fault.

    None where the error is not about a graph's life: that one is the user's, and says enough by itself.
    """
    known = next(
        ((code, name) for text, code, name in ENGINE_ERRORS if text in exception_text), None
    )
    if known is None:
        return None
    code, name = known
    return Finding(
        code=code,
        name=name,
        severity=Severity.ERROR,
        certainty=Certainty.OBSERVED,
        message="the engine raised an error that gradscope did not see coming",
        site=site,
        label=f"failed as {name} does",
        related=(Related("failing_node", None, f"the engine said: {exception_text.strip()}"),),
        backward_call=call.number,
        fix=Fix(
            "report", "please report this, with the script or as much of it as fails in this way"
        ),
        missed=True,
        graph=call.graph,
    )


def _example(page: str, heading: str) -> str:
    """The Python code under a heading of the page."""
    found = re.search(rf"^## {heading}$.*?^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    return found.group(1) if found else ""


def called(call: BackwardCall) -> str:
    """A backward call as a sentence names it: ``backward call 3``, or ``autograd.grad call 3``."""
    return f"{'autograd.grad' if is_grad(call) else 'backward'} call {call.number:,}"


def is_grad(call: BackwardCall) -> bool:
    """True for ``torch.autograd.grad``, which hands gradients back and leaves every ``.grad`` alone."""
    return call.kind == "grad"


def place(site: Site | None) -> str:
    """A place inside a sentence, by line and without its directories: ``train.py:41``."""
    if site is None:
        return "an unknown line"
    name = re.split(r"[/\\]", site.file)[-1]
    return f"{name}:{site.line}"

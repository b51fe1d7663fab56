"""`gradscope doctor`, `explain` and `rules`: what works here, and what the findings mean."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from types import ModuleType
from typing import NamedTuple

from gradscope.commands.outputs import console_on
from gradscope.record import __version__


class Grade(StrEnum):
    """The result of a check; only ``FAILS`` makes the exit status 1."""

    OK = "ok"
    LESS = "less"
    FAILS = "fails"


class Check(NamedTuple):
    """Something that was checked: its name, its state, and what to do about it."""

    name: str
    state: Grade
    detail: str
    help: str = ""


def doctor() -> int:
    """Print every check; the exit status is 1 if no program can be watched here."""
    implementation = platform.python_implementation()
    python = f"{implementation} {platform.python_version()} on {platform.platform()}"
    versions = Check("gradscope", Grade.OK, __version__), Check("Python", Grade.OK, python)
    checks = [*versions, *_torch_checks(), _pictures()]
    _print(checks)
    return int(any(check.state is Grade.FAILS for check in checks))


def _torch_checks() -> Iterator[Check]:
    try:
        import torch
    except Exception as error:  # a broken installation raises anything
        why = f"it cannot be imported ({type(error).__name__}: {error})"
        beside = "gradscope watches only programs in its own environment"
        yield Check("torch", Grade.FAILS, why, f"install torch in this environment: {beside}")
        return
    devices = [name for name in ("cuda", "mps", "xpu") if _is_available(torch, name)]
    yield Check("torch", Grade.OK, f"{torch.__version__}, devices: {', '.join(['cpu', *devices])}")
    try:
        from gradscope.collect import facts

        failing = facts.failing()
    except Exception as error:  # a torch that we do not know
        yield Check("facts about torch", Grade.FAILS, f"{type(error).__name__}: {error}", _REPORT)
        return
    holding = len(facts.FACTS) - len(failing)
    yield Check("facts about torch", Grade.OK, f"{holding} of {len(facts.FACTS)} hold")
    for fact in failing:
        lost = "; ".join(part.value for part in fact.parts)
        state = Grade.FAILS if facts.Part.WATCH in fact.parts else Grade.LESS
        yield Check("fact", state, f"does not hold: {fact.statement} ({lost})", _REPORT)
    yield _watches()


_REPORT = "use a torch that docs/compatibility.md lists, and please report this"


def _is_available(torch: ModuleType, device: str) -> bool:
    with suppress(Exception):  # a driver that does not answer
        return bool(getattr(torch, device).is_available())
    return False


def _watches() -> Check:
    """Watch a backward call through a freed graph, in this process."""
    try:
        import torch

        from gradscope.api.watch import watch

        with watch(settings=False) as scope:
            loss = torch.ones(2, requires_grad=True, device="cpu").exp().sum()
            torch.autograd.backward(loss)
            with suppress(RuntimeError):
                torch.autograd.backward(loss)
        announced = any(finding.code == "GS101" for finding in scope.findings)
        notes = scope.summary.notes
    except Exception as error:  # whatever is wrong here is what we are asked for
        return Check("a watch", Grade.FAILS, f"{type(error).__name__}: {error}", _REPORT)
    if not announced:
        return Check("a watch", Grade.FAILS, "it missed a freed graph", _REPORT)
    if notes:
        return Check("a watch", Grade.LESS, "; ".join(notes), _REPORT)
    return Check("a watch", Grade.OK, "it announced a backward call through a freed graph")


def _pictures() -> Check:
    from gradscope.render.pictures import layout

    try:
        layout.lay_out("digraph { a -> b }", "json0")
    except Exception as error:  # a system that the engine does not know
        why = f"{type(error).__name__}: {error}"
        return Check("pictures", Grade.LESS, why, "a .dot can be drawn elsewhere; all else works")
    return Check("pictures", Grade.OK, "a graph was laid out")


def _print(checks: list[Check]) -> None:
    from rich.table import Column, Table
    from rich.text import Text

    styles = {Grade.OK: "green", Grade.LESS: "yellow", Grade.FAILS: "bold red"}
    columns = Column(no_wrap=True), Column(no_wrap=True), Column(overflow="fold")
    table = Table(*columns, box=None, show_header=False, pad_edge=False)
    for check in checks:
        detail = Text(check.detail)
        if check.help and check.state is not Grade.OK:
            detail.append(f"\nhelp: {check.help}")
        table.add_row(Text(check.state.value, styles[check.state]), check.name, detail)
    console_on(sys.stdout).print(table)


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

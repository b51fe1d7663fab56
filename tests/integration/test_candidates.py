"""
The candidates for a fix: the expert's comes first, and the gradients that arrive are those that were told.

Each program names the kind of fix that an expert would choose. Every candidate that comes with edits
is tried out: who is said to get no gradient from a loss gets none, and who is said to get some does.
"""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import gradscope
from gradscope.code import source
from gradscope.fixing.patch import apply, decoded
from gradscope.model import Applicability, Finding, Fix, Severity
from gradscope.model.finding import by_weight
from gradscope.program.sites import place_in

PROGRAMS = sorted((Path(__file__).parent / "programs" / "candidates").glob("*.py"))
CASES = [
    path
    for path in sorted((Path(__file__).parents[1] / "cases").glob("[0-9]*.py"))
    if '"error": null' not in path.read_text("utf-8").partition("\n")[0]
]
NOTHING = re.compile(r"(.+) would get no gradient from `([\w.]+)`(?! \(line \d+\) through)")
SOMETHING = re.compile(r"(.+) would get gradient from `([\w.]+)` \(line \d+\) as before")
ALWAYS = re.compile(
    r"(?!an unnamed leaf )(.+) would get gradient (?:in each iteration|from each loss through its own iteration, .+"
    r"|from both losses as before)$"
)
BY_NAME = dict[str, list[set[str]]]


def trained_by(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[BY_NAME, str]:
    """Return which parameters, by name, got gradient from each backward call of a loss, by its
    name, and what the program raised.
    """
    found: BY_NAME = {}
    plain: Any = torch.Tensor.backward

    def backward(self: torch.Tensor, *given: Any, **named: Any) -> None:
        frame = sys._getframe(1)
        before = gradients(frame.f_globals)
        plain(self, *given, **named)
        after = gradients(frame.f_globals)
        changed = {name for name, grad in after.items() if not same(grad, before.get(name))}
        found.setdefault(source.root_name(place_in(frame).site), []).append(changed)

    with monkeypatch.context() as patch:  # not under a watch: the calls would be made here
        patch.setattr(torch.Tensor, "backward", backward)
        torch.manual_seed(0)
        try:
            runpy.run_path(str(path), run_name="__main__")
        except RuntimeError as error:
            return found, str(error)
    return found, ""


def same(grad: torch.Tensor, other: torch.Tensor | None) -> bool:
    return other is not None and torch.equal(grad, other)


def gradients(variables: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: leaf.grad.clone() for name, leaf in leaves(variables) if leaf.grad is not None}


def leaves(variables: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in [*variables.items()]:
        if isinstance(value, torch.nn.Module):
            yield from ((f"{name}.{key}", p) for key, p in value.named_parameters())
        elif isinstance(value, torch.Tensor) and value.is_leaf:
            yield name, value
        elif hasattr(value, "__dict__") and type(value).__module__ == "__main__":
            yield from ((f"self.{key}", p) for key, p in leaves(vars(value)))


def run(path: Path) -> tuple[list[Finding], str]:
    raised = ""
    torch.manual_seed(0)
    with gradscope.watch() as scope:
        try:
            runpy.run_path(str(path), run_name="__main__")
        except RuntimeError as error:
            raised = str(error)
            scope.explain(error)
        assert not scope.recording().summary.notes
    return scope.findings, raised


def with_edits(path: Path, fix: Fix, to: Path) -> Path:
    changed = apply(decoded(str(path), path.read_bytes()), fix.edits)
    to.write_bytes(changed.after.data)
    return to


def are_in(words: str, names: set[str]) -> bool:
    """Whether one of the names is among those that words stand for: `` `G.*` and `w` ``."""
    told = [re.escape(each).replace(r"\*", ".*") for each in re.findall(r"`([^`]+)`", words)]
    assert told
    return any(re.fullmatch(each, name) for each in told for name in names)


@pytest.mark.full(but=10)
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_the_expert_s_fix_is_first_and_what_is_told_of_training_is_true(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = re.search(r"^# fix: (\w+)$", path.read_text("utf-8"), re.MULTILINE)
    assert kind is not None
    found, raised = run(path)
    assert raised
    serious = [each for each in found if each.severity is not Severity.ADVICE]
    assert len(serious) == 2
    assert serious[0].fixes == serious[1].fixes  # the prediction, and the error that it foretold
    first = serious[0].fix
    assert first is not None
    assert first.kind == kind[1]
    assert first.edits
    assert first.reason
    assert first.applicability is not Applicability.UNSPECIFIED
    again, raised = run(with_edits(path, first, tmp_path / "mended.py"))
    assert not raised
    assert {each.severity for each in again} <= {Severity.ADVICE}
    for number, fix in enumerate(serious[0].fixes):
        if not fix.edits:
            continue
        calls, raised = trained_by(with_edits(path, fix, tmp_path / f"{number}.py"), monkeypatch)
        for effect in () if raised else fix.effects:
            check(effect, calls)


def check(effect: str, calls: BY_NAME) -> bool:
    """Compare a sentence with the gradients that arrived; return whether it is one about them."""
    if told := NOTHING.match(effect):
        assert calls[told[2]]
        assert not any(are_in(told[1], names) for names in calls[told[2]])
    elif told := SOMETHING.match(effect):
        assert calls[told[2]]
        assert all(are_in(told[1], names) for names in calls[told[2]])
    elif told := ALWAYS.match(effect):
        # None, where the program trains by autograd.grad.
        assert all(are_in(told[1], names) for each in calls.values() for names in each)
    return told is not None


@pytest.mark.full(but=8)
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_first_fix_cures_the_annotated_cases_and_what_is_told_of_training_is_true(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, raised = run(path)
    assert raised
    first = by_weight(found)[0].fix
    assert first is not None
    assert first.edits
    again, raised = run(with_edits(path, first, tmp_path / "mended.py"))
    assert not raised
    assert {each.severity for each in again} <= {Severity.ADVICE}
    for number, fix in enumerate(dict.fromkeys(fix for each in found for fix in each.fixes)):
        if not fix.edits:
            continue
        calls, raised = trained_by(with_edits(path, fix, tmp_path / f"{number}.py"), monkeypatch)
        for effect in () if raised else fix.effects:
            check(effect, calls)


def test_what_would_be_computed_again_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        "import torch\n"
        "w = torch.ones(3, requires_grad=True)\n"
        "h = (w * 2).exp().cos()\n"
        "a, b = h.sum(), h.pow(2).sum()\n"
        "a.backward()\n"
        "b.backward()\n",
        "utf-8",
    )
    found, _ = run(path)
    effects = {effect for fix in found[0].fixes for effect in fix.effects}
    # Cos and Exp save something, Mul is below them; Sum is of the first loss alone.
    assert (
        "the shared part is computed twice: 3 of the 4 nodes of this call's graph (75 %)" in effects
    )

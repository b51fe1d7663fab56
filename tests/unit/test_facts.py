"""The facts about torch and CPython that gradscope relies on hold here, and are read in few places."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from facts import FACTS, Fact

import gradscope
from gradscope.collect.facts import FACTS as PROBED
from gradscope.collect.facts import Fact as Probed
from gradscope.hooks import Pair
from gradscope.torch_private import KnownStack
from tests.needs import has

PACKAGE = Path(gradscope.__file__).parent
HOME = ("hooks.py", "torch_private.py")
PRIVATE = re.compile(r"\btorch(?:\.\w+)*\._(?!_)\w+|from torch\S* import _\w+|from torch\S*\._")


@pytest.mark.parametrize("fact", [*FACTS, *PROBED], ids=lambda fact: fact.statement)
def test_a_fact_holds(fact: Fact | Probed) -> None:
    name = getattr(fact, "of_name", "")
    if name and not has(name):
        pytest.skip(f"this torch has no torch.{name}")
    assert fact.probe()


@pytest.mark.parametrize("fact", [*FACTS, *PROBED], ids=lambda fact: fact.statement)
def test_a_fact_names_files_that_exist(fact: Fact | Probed) -> None:
    assert fact.used_in
    for file in fact.used_in:
        assert (PACKAGE / file).is_file(), file


def test_an_old_torch_is_asked_how_many_pairs_of_hooks_are_in_force() -> None:
    torch_has: list[Pair] = []
    known = KnownStack(
        lambda *pair: torch_has.append(pair),
        lambda: torch_has.pop() and None,
        lambda: bool(torch_has),
    )
    ours, theirs = ((lambda t: t, lambda t: t) for _ in range(2))
    known.push(*ours)
    known.push(*theirs)
    torch_has.pop()  # as the engine does when a call ends that began with one pair
    assert known.top() == ours
    assert torch_has == [ours]
    known.pop()
    torch_has.append(ours)  # as a compiler does that puts back an earlier stack
    assert known.top() == ours
    torch_has.clear()
    assert known.top() is None


def code_of(path: Path) -> str:
    """The source without its docstrings and comments."""
    text = re.sub(r'""".*?"""', "", path.read_text(encoding="utf-8"), flags=re.S)
    return re.sub(r"#.*", "", text)


def test_private_names_of_torch_are_read_in_one_place() -> None:
    found = {
        str(path.relative_to(PACKAGE)): PRIVATE.findall(code_of(path))
        for path in PACKAGE.rglob("*.py")
        if str(path.relative_to(PACKAGE)) not in HOME
    }
    # The text of GS104's finding names a setting that its reader can change; a process that torch
    # starts for itself is known by its command line; what tries are made from imports the compiler
    # once, and they turn it off.
    found = {file: names for file, names in found.items() if names}
    launching = {f"launch/{name}.py" for name in ("interpreter", "fork_server", "trial")}
    assert set(found) <= {"rules/gs104.py", *launching}, found

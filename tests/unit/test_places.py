"""Columns count characters, whichever way a place was found: by an instruction or in the syntax tree."""

from __future__ import annotations

import ast
import dis
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gradscope.code import source, statements
from gradscope.model import Finding, Site
from gradscope.program.sites import place_at
from tests import known, watching

OPENING = """\
import torch
from torch import nn
torch.manual_seed(0)
"""

PROGRAMS = {
    "the same line again": """
cell, hidde = nn.RNNCell(3, 5), torch.zeros(2, 5)
for step in range(3):
    hidde = cell(torch.randn(2, 3), hidde)
    label = "naive:"; grosse = hidde.pow(2).mean(); print(end=label[:0]); grosse.backward()
""",
    "a state in a statement of its own": """
cell, hidde = nn.RNNCell(3, 5), torch.zeros(2, 5)
for step in range(3):
    hidde = cell(torch.randn(2, 3), hidde)
    grosse = hidde.pow(2).mean()
    grosse.backward()
""",
    "two losses": """
layer = nn.Linear(3, 5)
hidde = layer(torch.randn(2, 3)).tanh()
grosse, other = hidde.pow(2).mean(), hidde.exp().mean()
grosse.backward()
other.backward()
""",
    "a loss in a list": """
layer = nn.Linear(3, 5)
hidde = layer(torch.randn(2, 3)).tanh()
grosse = [hidde.mean(), hidde.exp().mean()]
for other in grosse:
    other.backward()
""",
    "a running total": """
layer, grosse = nn.Linear(3, 5), 0
for step in range(3):
    hidde = layer(torch.randn(2, 3)).pow(2).mean()
    grosse = grosse + hidde
    grosse.backward()
""",
    "an operation in place": """
layer = nn.Linear(3, 5)
hidde = torch.sigmoid(layer(torch.randn(2, 3)))
grosse = hidde.pow(2).mean()
hidde += 1
grosse.backward()
""",
    "a graph kept in a list": """
layer, grosse = nn.Linear(3, 5), []
for step in range(10):
    hidde = layer(torch.randn(2, 3)).tanh().mean()
    hidde.backward()
    grosse.append(hidde)
""",
    "a graph kept for nothing": """
layer = nn.Linear(3, 5)
for step in range(6):
    grosse = layer(torch.randn(2, 3)).tanh().mean()
    grosse.backward(retain_graph=True)
""",
}
NAMES = {"hidde": "hïddé", "grosse": "größße", "naive": "naïve"}


def spelt(text: str) -> str:
    for name, other in NAMES.items():
        text = text.replace(name, other)
    return text


def found_in(program: str, script: Path) -> list[Finding]:
    script.write_text(OPENING + program, encoding="utf-8")
    found, raised, _ = watching.found_in(script)
    assert not raised or "a second time" in raised or "inplace" in raised
    return found


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_other_letters_change_no_finding(program: str, tmp_path: Path) -> None:
    plain = found_in(program, tmp_path / "plain.py")
    other = found_in(spelt(program), tmp_path / "other.py")
    assert plain
    expected = spelt(repr(plain).replace("plain.py", "other.py"))
    assert repr(other) == expected


TEXT = """\
def höhe(größe, ä):
    print("größer", ä)
    ñ = größe.pow(2) if "größe ß" else größe.mean()
    lång = "naïve ß" and ñ.sum().backward()
    ñ.backward(); größe += 1  # größe ß
    [ä.add_(i) for i in ä]
    return ñ
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    script = tmp_path / "maße.py"
    script.write_text(TEXT, encoding="utf-8")
    return script


def text_at(site: Site) -> str:
    assert site.line == site.end_line
    line = TEXT.splitlines()[site.line - 1]
    return line[site.column - 1 : site.end_column - 1]


def test_an_instruction_and_its_node_have_one_place(program: Path) -> None:
    module = compile(TEXT, str(program), "exec")
    code = next(c for c in module.co_consts if hasattr(c, "co_code"))
    calls = {
        place_at(code, i.offset).site
        for i in dis.get_instructions(code)
        if i.opname.startswith("CALL") and "INTRINSIC" not in i.opname
    }
    calls = {site for site in calls if text_at(site).endswith(")")}
    assert len(calls) == 5 + (sys.version_info >= (3, 12))  # comprehensions are inlined
    for site in calls:
        call = known(source.call_at(site))
        assert ast.unparse(call).replace("'", '"') == text_at(site)


def test_statements_have_places_in_characters(program: Path) -> None:
    found = statements.in_place_statements(str(program))
    assert sorted(text_at(s.site) for s in found) == ["größe += 1", "ä.add_(i)"]
    for statement in found:
        assert statements.changed_by(replace(statement.site, column=1)) == statement

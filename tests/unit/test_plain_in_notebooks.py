"""In a notebook, where rich displays what it prints, text is text: in str(), print() and files."""

from __future__ import annotations

import io

import pytest
import rich.console
import torch

import gradscope


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Have rich take this process for a notebook; return what it displays there."""
    displayed: list[object] = []
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda *parts: displayed.append(parts))
    return displayed


def test_the_answer_of_check(notebook: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    loss = (torch.ones(3, requires_grad=True) ** 2).sum()
    loss.backward()
    hazards = gradscope.check(loss)
    print(hazards)
    assert "error[GS101]: backward through a freed graph" in capsys.readouterr().out
    assert "GS101" in str(hazards)
    assert notebook == []


def test_a_report(notebook: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    leaf = torch.ones(3, requires_grad=True)
    with gradscope.watch() as scope:
        loss = (leaf**2).sum()
        loss.backward()
        with pytest.raises(RuntimeError):
            loss.backward()
    file = io.StringIO()
    print(scope, file=file)
    assert "GS101" in file.getvalue()
    print(scope)
    assert capsys.readouterr().out == file.getvalue()
    assert str(scope) == file.getvalue().removesuffix("\n")
    print(scope.findings, scope.summary, gradscope.snapshot((leaf * 2).exp()))
    assert "GS101" in capsys.readouterr().out
    assert notebook == []

"""The page for a GPU is made whole on the simulated device, and a row that fails costs no other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
import torch

import gradscope
from gradscope.api.scope import Scope
from tests.command import ROOT


@pytest.mark.full
def test_the_page_is_made_whole(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    options = ["--device", "sim", "--programs", "2", "--steps", "5", "--write", str(file)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.on_device", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    page = file.read_text(encoding="utf-8")
    assert page == done.stdout
    assert done.returncode == 0, page + done.stderr
    assert re.findall(r"^\| 0 to 1 \| 2 \| 0 \| 0 \| 0 \| same \|$", page, re.MULTILINE)
    assert page.count("\n## ") == 4
    assert " measured |" in page
    assert "| hooks that compute | 0 | 0 | 1 | same |" in page
    assert "| eager | sim | bit for bit |" in page
    assert "skipped: only CUDA captures; the steps ran, uncaptured" in page


@pytest.mark.full
def test_what_a_watch_changes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import device_rows

    watch = gradscope.watch

    @contextmanager
    def clumsy() -> Iterator[Scope]:
        with watch() as scope, mock.patch.object(torch.optim.SGD, "step", return_value=None):
            torch.ones(1, device="sim").item()
            yield scope

    assert device_rows.check(device_rows.EAGER, "sim", 5)[1] == "same"
    assert device_rows.syncs("tiny MLP", "sim", 5) == (["0", "0", "1"], "same")
    monkeypatch.setattr(gradscope, "watch", clumsy)
    assert "the parameters" in device_rows.check(device_rows.EAGER, "sim", 5)[1]
    assert device_rows.syncs("tiny MLP", "sim", 5) == (["0", "1", "1"], "differs")


def test_a_row_that_hangs_or_dies_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import on_device
    from benchmarks.device_rows import Row

    def make(name: str, where: str, steps: int) -> Row:
        if name == "hangs":
            time.sleep(600)
        if name == "dies":
            os.abort()
        if name == "raises":
            raise ValueError(name)
        return [where, str(steps)], "same"

    names = ("hangs", "dies", "raises", "runs")
    monkeypatch.setattr(on_device, "LIMIT", 3)
    section = on_device.Section("title", "columns", 60, names, make, at_once=4)
    made = list(on_device.made(section, "sim", 5))
    assert [(name, row) for name, row, _ in made] == [
        ("hangs", on_device.NO_END),
        ("dies", ([], "failed, with status -6")),
        ("raises", ([], "failed, with status 1")),
        ("runs", (["sim", "5"], "same")),
    ]
    hung, died, error, ran = (said for *_, said in made)
    assert " in make\n" in hung
    assert " in make\n" in died
    assert error.endswith("ValueError: raises\n")
    assert ran == ""


@pytest.mark.full
def test_a_section_ends_with_its_time() -> None:
    from benchmarks import on_device
    from benchmarks.device_rows import Row

    def make(name: str, where: str, steps: int) -> Row:
        time.sleep(600)
        raise AssertionError(name)

    section = on_device.Section("title", "columns", 2, ("one", "other"), make)
    rows = [row for _, row, _ in on_device.made(section, "sim", 5)]
    assert rows == [on_device.NO_TIME] * 2

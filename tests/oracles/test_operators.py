"""The oracle *operators* on 60 entries of all kinds, spread over all that torch has samples of."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.command import ROOT, ran
from tests.needs import since
from tests.oracles.operators import read

pytest.importorskip("expecttest")
NOT_YET = re.compile(r"foreach \d+: outside: second backward: check: \[\]")
"""Outside of a watch a node of C++ does not tell that it was freed."""


def test_what_is_said_of_operators_is_what_the_engine_does(tmp_path: Path) -> None:
    since("2.13", "it has other samples")
    out = tmp_path / "results"
    ran(
        sys.executable,
        "-m",
        "tests.oracles.operators",
        "--some",
        "60",
        "--one",
        "--json",
        out,
        cwd=ROOT,
    )
    results = read(out)
    kinds = [name.partition(" ")[0] for name in results]
    assert len(results) >= 58
    assert set(kinds) == {"operator", "foreach", "module", "optimizer"}
    faults = {f"{name}: {one}" for name, result in results.items() for one in result["faults"]}
    assert not [fault for fault in faults if not NOT_YET.search(fault)]
    assert sum(result["asked"] for result in results.values()) > 2_000

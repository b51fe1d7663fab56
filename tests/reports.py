"""Holds a JSON report against ``docs/report.schema.json``, for all tests that make one."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from tests.command import ROOT

SCHEMA = ROOT / "docs" / "report.schema.json"


def valid(text: str) -> dict[str, Any]:
    """Return the report in a text, which has the keys of the schema, all of them and no others."""
    report = json.loads(text)
    if faults := [f"{each.json_path}: {each.message}" for each in _strict().iter_errors(report)]:
        pytest.fail("\n".join(faults), pytrace=False)
    return dict(report)


@cache
def _strict() -> Any:
    """The schema as it is documented, but closed: readers must let new keys pass, and we must not."""
    jsonschema = pytest.importorskip("jsonschema")
    whole = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(whole)
    for described in (whole, *whole["$defs"].values()):
        described["additionalProperties"] = False
    return jsonschema.Draft202012Validator(whole)

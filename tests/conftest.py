"""After every test nothing of gradscope may be left in torch or in Python."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from tests import as_a_module, rounds

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Reports are those that people get, also where the tests run for nobody.
os.environ.pop("CI", None)
# Rehearsals run a program a few times more: the tests of rehearsals ask for them.
os.environ.setdefault("GRADSCOPE_NO_REHEARSAL", "1")
# A shell starts what it runs in the background with these ignored, and programs inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "unit"))
pytest.register_assert_rewrite("tests.command", "tests.rules.saying")


@pytest.fixture(scope="session", autouse=True)
def folders_of_notebooks(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Give IPython and Jupyter folders to write to: the home may be read-only."""
    for name in ("IPYTHONDIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        os.environ[name] = str(tmp_path_factory.mktemp(name.lower()))


@pytest.fixture(scope="module", autouse=True)
def what_was_there_before() -> None:
    """Spare Python's collector what is there before a file of tests.

    Who asks for all objects or for those that refer to one would else look at a million: the tests, torch's functions,
    and what gradscope has read of their sources.
    """
    gc.freeze()


def state_of_the_host() -> dict[str, object]:
    """Everything that gradscope ever changes, as it is at the moment; empty while nothing has imported torch."""
    if "torch" not in sys.modules:
        return {}
    import torch
    import torch.autograd.graph
    import torch.optim.optimizer as optimizer
    import torch.utils._python_dispatch as dispatch
    from torch.autograd.function import BackwardCFunction

    autograd = torch._C._autograd
    names = ("push_saved_tensors_default", "pop_saved_tensors_default", "top_saved_tensors_default")
    state: dict[str, object] = {
        f"_{name}_hooks": getattr(autograd, f"_{name}_hooks", None) for name in names
    }
    state |= {
        name: getattr(autograd, name)
        for name in ("_saved_tensors_hooks_disable", "_saved_tensors_hooks_enable")
    }
    top = getattr(autograd, "_top_saved_tensors_default_hooks", None)  # not before torch 2.5
    state |= {
        "top hooks": None if top is None else top(False),
        "engine (graph)": torch.autograd.graph._engine_run_backward,
        "engine (autograd)": torch.autograd._engine_run_backward,  # type: ignore[attr-defined]
        "push mode": dispatch._push_mode,
        "pop mode": dispatch._pop_mode,
        "saved_tensors": vars(BackwardCFunction).get("saved_tensors"),
        "register_hooks": vars(autograd.SavedTensor)["register_hooks"],
        "unpack": vars(autograd.SavedTensor).get("unpack"),
        "compiled autograd": torch._C._dynamo.compiled_autograd.set_autograd_compiler,
        "steps before": dict(optimizer._global_optimizer_pre_hooks),
        "steps after": dict(optimizer._global_optimizer_post_hooks),
    }
    return state


def monitoring_tools() -> list[str | None]:
    if sys.version_info >= (3, 12):
        return [sys.monitoring.get_tool(i) for i in range(6)]
    return []


def state_of_python() -> dict[str, object]:
    """What of the interpreter gradscope could have changed."""
    return {
        "thread start": threading.Thread._bootstrap,  # type: ignore[attr-defined]
        "excepthook": sys.excepthook,
        "unraisablehook": sys.unraisablehook,
        "profile": sys.getprofile(),
        "trace": sys.gettrace(),
        "asking for the trace": sys.gettrace,
        "thread trace": threading.gettrace(),
        "monitoring tools": monitoring_tools(),
        "meta path": [f for f in sys.meta_path if type(f).__module__.startswith("gradscope")],
    }


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before, python = state_of_the_host(), state_of_python()
    yield
    after = state_of_the_host()
    if before:
        assert after == before
    elif after:
        assert after["top hooks"] is None
        assert "gradscope" not in repr(after)
    assert state_of_python() == python


@pytest.fixture
def little_is_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound what each call reads of the program ahead of it, for tests of what has happened.

    In a program of a few steps that reading takes most of the time, and gives them nothing.
    """
    monkeypatch.setattr("gradscope.program.ahead.questions.MOST_STEPS", 500)


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    names = pyfuncitem._fixtureinfo.argnames
    as_a_module(partial(pyfuncitem.obj, **{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="take all tests, not only the quick round")
    parser.addoption("--rest", action="store_true", help="take what the quick round leaves out")


@pytest.hookimpl(tryfirst=True)  # before a plugin changes their order
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    markers, rest = config.option.markexpr, config.option.rest
    taken = rounds.chosen(items, quick=rounds.is_quick(config), markers=markers, rest=rest)
    config.hook.pytest_deselected(items=[*{*items}.difference(taken)])
    items[:] = taken

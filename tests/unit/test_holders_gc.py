"""That a scan leaves nothing behind, and what ``holders()`` finds with the help of Python's collector."""

from __future__ import annotations

import builtins
import collections
import contextlib
import functools
import gc
import io
import logging
import re
import sys
import textwrap
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from scanning import made, scan
from torch import Tensor

from gradscope.api.graphs import Holder, holders
from gradscope.errors import GradscopeError
from gradscope.program.reach import ON_DEMAND, Limits, Walk, contexts, named_tensors
from tests import known
from tests.command import ran


def names(*frames: types.FrameType) -> set[str]:
    """The names that a scan of these frames finds, of the caller's without."""
    return set(scan(*(frames or (sys._getframe(1),)))[0])


def paths(found: tuple[Holder, ...]) -> set[str]:
    return {holder.path for holder in found}


@pytest.fixture(autouse=True)
def tests_of_others_are_not_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest's frames lead to all tests that were collected: half a million objects, one after the other."""
    few = ON_DEMAND._replace(max_objects=20_000)
    monkeypatch.setattr("gradscope.api.graphs.ON_DEMAND", few)


@pytest.fixture
def no_collection() -> Iterator[None]:
    """What a scan kept must be seen at once, not be swept away by a chance collection."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def every_object() -> Iterator[None]:
    """Have what was there before the tests of this file looked at as well."""
    gc.unfreeze()
    yield
    gc.freeze()


# --- a scan keeps nothing


@pytest.mark.usefixtures("no_collection")
def test_a_rebound_variable_lets_go_of_its_old_value() -> None:
    def train() -> None:
        previous: Callable[[], Tensor | None] = lambda: None  # noqa: E731
        for _ in range(3):
            loss = made()
            assert previous() is None
            previous = weakref.ref(loss)
            names(sys._getframe())
            names(sys._getframe(1), sys._getframe())

    train()


@pytest.mark.usefixtures("no_collection")
def test_cells_generators_and_coroutines_are_left_as_they_were() -> None:
    state = made()

    def batches() -> Iterator[Tensor]:
        nonlocal state
        for _ in range(3):
            fresh = made()
            yield fresh
            state = fresh * 2

    stream, gone = batches(), []
    for value in stream:
        gone.append(weakref.ref(value))
        assert {"state", "stream -> frame of batches: fresh", "value"} <= names()
        del value
    assert [reference() for reference in gone] == [None] * 3
    assert state.requires_grad


@pytest.mark.usefixtures("no_collection")
def test_a_scan_leaves_no_cycle_of_its_own() -> None:
    owner = types.SimpleNamespace(memory=[made()], parent=None)
    owner.parent = types.SimpleNamespace(child=owner)
    gone = weakref.ref(owner.memory[0])
    names()
    owner.memory.clear()
    assert gone() is None


def test_the_variables_of_every_kind_of_frame_stay_as_they_are() -> None:
    def function(a: int, *rest: int, **more: int) -> tuple[Any, ...]:
        b = made()
        names(sys._getframe())
        return a, rest, more, b.requires_grad

    class Body:
        value = made()
        seen = names(sys._getframe())
        again = value

    assert function(1, 2, c=3) == (1, (2,), {"c": 3}, True)
    assert "value" in Body.seen
    assert Body.again is Body.value


def test_a_function_that_runs_exec_is_left_alone() -> None:
    def function() -> Any:
        number = 1
        namespace: dict[str, Any] = {}
        exec(
            "made_there = 5\nlook()\nafter = made_there",
            {"look": lambda: names(sys._getframe(2))},
            namespace,
        )
        return namespace, number

    assert function() == ({"made_there": 5, "after": 5}, 1)


def test_model_eval_does_not_hide_the_variables() -> None:
    def evaluate(model: torch.nn.Module) -> set[str]:
        model.eval()
        score = made()
        seen = names(sys._getframe())
        assert score is not None
        return seen

    assert "score" in evaluate(torch.nn.Linear(1, 1))


@pytest.mark.usefixtures("no_collection")
def test_an_exceptions_frames_are_released_with_it() -> None:
    def fail() -> None:
        out = made()
        gone.append(weakref.ref(out))
        raise ValueError

    gone: list[Any] = []
    failures: list[Exception] = []
    try:
        fail()
    except ValueError as error:
        failures.append(error)
    assert any(n.startswith("failures[0].__traceback__ -> frame of fail (") for n in names())
    failures.clear()
    assert gone[0]() is None


@pytest.mark.usefixtures("no_collection")
def test_a_scan_that_is_interrupted_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = made()
    gone = weakref.ref(loss)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Walk, "_path", interrupted)
    with contextlib.suppress(KeyboardInterrupt):
        named_tensors([sys._getframe()], Limits())
    del loss
    assert gone() is None


# --- holders() on demand


def test_names_in_reach_with_their_sites() -> None:
    hidden = made()
    memory = {"k": [hidden]}
    found = holders(hidden)
    assert paths(found) == {"hidden", "memory['k'][0]"}
    assert {(h.kind, h.holds) for h in found} == {("local", "tensor")}
    assert all(
        h.site is not None and h.site.file == __file__ and h.site.function.startswith("test_")
        for h in found
    )
    assert found[0].description.startswith(
        "hidden, from a local variable of test_names_in_reach_with_their_sites()"
    )
    assert memory


def test_a_temporary_has_no_holder() -> None:
    found = holders(made())
    assert found == ()


def test_a_leaf_may_be_asked_about() -> None:
    layer = torch.nn.Linear(2, 2)
    found = holders(layer.weight)
    assert paths(found) == {"layer.weight"}


@pytest.mark.usefixtures("every_object")
def test_an_installed_modules_cache_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    t = made()
    monkeypatch.setattr(torch.nn.functional, "_cache_for_test", {"k": [t]}, raising=False)
    found = holders(t)
    assert "torch.nn.functional._cache_for_test['k'][0]" in paths(found)


def test_what_a_running_loop_iterates_over_is_found() -> None:
    t = made()

    def batches() -> Iterator[int]:
        inner = t
        yield 1
        assert inner is not None

    for _ in batches():
        found = holders(t)
    assert "<generator batches>: inner" in paths(found)


@pytest.mark.usefixtures("no_collection")
def test_an_object_in_a_reference_cycle_is_found() -> None:
    class Owner:
        pass

    owner: Any = Owner()
    owner.myself, owner.state = owner, made()
    t = owner.state
    del owner
    found = holders(t)
    assert {(h.path, h.kind) for h in found} == {("t", "local"), ("<Owner>.state", "unnamed")}
    gc.collect()
    assert paths(holders(t)) == {"t"}


class Stores(torch.autograd.Function):
    """Puts its output on its own ctx: a reference cycle through C++."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = x * 2
        ctx.out = out
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return 2 * grads[0]


def _names_on_contexts(wanted: Tensor) -> list[str]:
    return [path.text for path, tensor in contexts() if tensor is wanted]


def test_an_output_on_its_own_ctx_is_found() -> None:
    y = Stores.apply(torch.ones(2, requires_grad=True))  # type: ignore[no-untyped-call]
    named = {h.path: h for h in holders(y)}
    assert set(named) == {"y", "ctx.out"}
    assert named["ctx.out"].kind == "ctx"
    assert known(named["ctx.out"].site).function == "Stores.forward"
    assert _names_on_contexts(y) == ["ctx.out"]
    gone = weakref.ref(y)
    del y, named
    gc.collect()
    assert gone() is None


def test_a_hidden_cache_is_found_by_the_collector() -> None:
    t = made()

    @functools.cache
    def table() -> Tensor:
        return t

    table()
    assert "<lru_cache of table>" in paths(holders(t))


def test_other_tensors_that_keep_the_graph() -> None:
    hidden = made()
    losses = [hidden.exp(), hidden.sum()]
    shared = torch.ones(2, requires_grad=True).exp()
    target, other = shared * 2, shared * 3
    found = {h.path: h.holds for h in holders(hidden, graph=True)}
    assert found == {"hidden": "tensor", "losses[0]": "graph", "losses[1]": "graph"}
    found = {h.path: h.holds for h in holders(target, graph=True)}
    assert found == {"target": "tensor", "shared": "part of graph", "other": "part of graph"}
    assert losses
    assert other is not None


def test_parameters_in_common_are_not_a_graph_in_common() -> None:
    layer = torch.nn.Linear(2, 2)
    first, second = layer(torch.ones(2)), layer(torch.ones(2))
    assert paths(holders(first, graph=True)) == {"first"}
    assert second is not None


@pytest.mark.usefixtures("no_collection")
def test_holders_keeps_nothing() -> None:
    hidden = made()
    loss = hidden.exp().sum()
    gone = [weakref.ref(hidden), weakref.ref(loss)]
    assert paths(holders(hidden, graph=True)) == {"hidden", "loss"}
    del hidden, loss
    assert [reference() for reference in gone] == [None, None]


@pytest.mark.full
def test_many_holders_are_told_up_to_a_limit() -> None:
    hidden = made()
    history = collections.deque(hidden * n for n in range(500))
    found = holders(hidden, graph=True)
    assert len(found) == 100
    assert history


@pytest.mark.parametrize("wrong", [3, None, "loss", torch.nn.Linear(1, 1)])
def test_anything_but_a_tensor_gets_one_clear_line(wrong: Any) -> None:
    with pytest.raises(
        GradscopeError, match=r"^gradscope\.holders\(\) takes a tensor, not \w+: .+$"
    ):
        holders(wrong)


@pytest.mark.full
def test_a_deep_graph_survives_the_question() -> None:
    """A Node seen from Python is destroyed by recursion: too many in a row would end the process."""
    script = """
        import torch
        from gradscope.api.graphs import holders
        x = torch.ones(1, requires_grad=True)
        for number in range(150_000):
            x = x + 1
            if number == 100_000:
                middle = x
        other = x * 2
        assert {h.path for h in holders(middle, graph=True)} >= {"middle"}
        del x, middle, other
        print("alive")
    """
    done = ran(sys.executable, "-c", textwrap.dedent(script))
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


# --- what an exception and other frames keep


def raise_deep(depth: int, gone: list[Any]) -> None:
    l = made()  # noqa: E741
    gone.append(weakref.ref(l))
    if depth:
        raise_deep(depth - 1, gone)
    raise ValueError


@pytest.fixture
def caught(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ValueError, Any]]:
    """An exception out of 30 calls, and the tensor that the innermost frame holds."""
    for name in ("last_exc", "last_value", "last_traceback"):
        monkeypatch.delattr(sys, name, raising=False)
    gone: list[Any] = []
    try:
        raise_deep(30, gone)
    except ValueError as raised:
        error = raised
    yield error, gone[-1]
    error.__traceback__ = None


def kept_by_error(found: tuple[Holder, ...]) -> list[tuple[str, str, str]]:
    """Name, words and help of what leads to the frame that raised, its lines left out."""
    told = []
    for holder in found:
        if "frame of raise_deep (" in holder.path:
            path = re.sub(r" \(test_\w+\.py:\d+\)", "", holder.path)
            words = holder.description.removeprefix(f"{holder.path}, ")
            told.append((path, words.removesuffix(", holds this tensor"), holder.help))
            assert (known(holder.site).function, holder.kind) != ("<module>", "unnamed")
    return told


THROUGH = " -> frame of raise_deep: l"
FROM = "from a local variable of raise_deep() in test_holders_gc.py, whose frame {} keeps"
HERE = "a local variable of {}() in test_holders_gc.py"


@pytest.mark.parametrize("name", ["last_exc", "last_value", "last_traceback"])
def test_the_last_uncaught_exception_keeps_frames(
    caught: tuple[ValueError, Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    error, reference = caught
    last = error.__traceback__ if name == "last_traceback" else error
    monkeypatch.setattr(sys, name, last, raising=False)
    way = "" if name == "last_traceback" else ".__traceback__"
    told = kept_by_error(holders(reference()))
    advice = f"`del sys.{name}` lets go of it"
    assert (f"sys.{name}{way}{THROUGH}", FROM.format(f"sys.{name}"), advice) in told


def test_an_exception_in_a_variable_keeps_frames(caught: tuple[ValueError, Any]) -> None:
    error, reference = caught
    told = kept_by_error(holders(reference()))
    here = HERE.format("test_an_exception_in_a_variable_keeps_frames")
    advice = "`error.__traceback__ = None` lets go of it"
    assert (f"error.__traceback__{THROUGH}", FROM.format(here), advice) in told
    error.__traceback__ = None
    assert reference() is None


def test_what_was_logged_of_an_exception_keeps_frames(caught: tuple[ValueError, Any]) -> None:
    class Keeping(logging.Handler):
        def __init__(self) -> None:
            super().__init__()
            self.records: list[logging.LogRecord] = []

        def emit(self, record: logging.LogRecord) -> None:
            self.records.append(record)

    error, reference = caught
    keeping = Keeping()
    information = (ValueError, error, known(error.__traceback__))
    keeping.handle(logging.makeLogRecord({"msg": "failed", "exc_info": information}))
    raised = pytest.ExceptionInfo.from_exc_info(information)
    told = {path: advice for path, _, advice in kept_by_error(holders(reference()))}
    assert raised.value is error
    logged = told[f"keeping.records[0].exc_info[2]{THROUGH}"]
    assert logged == "`keeping.records[0].exc_info = None` lets go of it"
    assert told[f"raised._excinfo[2]{THROUGH}"] == "`del raised` lets go of it"


def test_variables_of_what_runs_are_told_of_once() -> None:
    told: list[list[tuple[str, str]]] = []

    def tell(tensor: Tensor) -> None:
        found = holders(tensor)
        told.append([(h.path, h.kind) for h in found if h.path not in ("tensor", "t")])

    t = made()
    for _ in (tell(inner) for inner in [t]):  # type: ignore[func-returns-value]
        pass

    class Body:
        kept = made()
        tell(kept)

    tell(Body.kept)
    exec("kept = made()\ntell(kept)", {"made": made, "tell": tell})
    generated, in_body, after, executed = told
    assert [one for one in generated if one[1] != "unnamed"] == [("inner", "local")]
    assert [path for path, _ in generated if "genexpr" in path] == []
    assert in_body == [("kept", "local")]
    assert after == [("Body.kept", "class")]
    assert executed == [("kept", "global")]


NOTEBOOK = [
    "import gradscope, torch, weakref\nfound = []",
    "def train(x):\n    l = x.exp()\n    found.append(weakref.ref(l))\n    raise ValueError",
    "train(torch.ones(2, requires_grad=True))",
    "in_error = gradscope.holders(found[0]())",
    "torch.ones(2, requires_grad=True).exp()",
    "shown = gradscope.holders(_5)",
]


@pytest.mark.usefixtures("every_object")
def test_what_ipython_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    shells = pytest.importorskip("IPython.core.interactiveshell")
    for name in ("last_exc", "last_value", "last_traceback", "last_type"):
        monkeypatch.setattr(sys, name, None, raising=False)
    monkeypatch.delattr(builtins, "_", raising=False)  # IPython keeps nothing there then
    shell = shells.InteractiveShell.instance()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            for cell in NOTEBOOK:
                shell.run_cell(cell, store_history=True)
        in_error, shown = shell.user_ns["in_error"], shell.user_ns["shown"]
    finally:
        shells.InteractiveShell.clear_instance()
        shell.displayhook.flush()
    way = " -> frame of train (Cell In[2], line 4): l"
    told = {holder.path: holder.help for holder in in_error}
    assert told.keys() >= {f"sys.last_traceback{way}", f"get_ipython().InteractiveTB.tb{way}"}
    assert all(path.startswith(("sys.", "get_ipython()")) for path in told)
    advice = told[f"get_ipython().InteractiveTB.tb{way}"]
    assert advice == "`get_ipython().InteractiveTB.tb = None` lets go of it"
    helped = {holder.path: holder.help for holder in shown}
    assert helped.keys() >= {"_", "_5", "Out[5]"}
    assert {helped[path].partition(" lets")[0] for path in ("_", "_5", "Out[5]")} == {
        "`%reset -f out`"
    }
    assert "unnamed" not in {holder.kind for holder in shown}

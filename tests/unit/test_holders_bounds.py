"""That a scan is bounded, and that it runs none of the user's code."""

from __future__ import annotations

import collections
import gc
import itertools
import threading
import types
from typing import Any

import pytest
import torch
from scanning import made, scan, scan_variables
from torch import Tensor, nn

from gradscope.program.reach import Limits


def test_a_large_container_is_looked_at_in_part() -> None:
    t = made()
    replay = [(0.0, None)] * 1_000_000
    replay[0] = replay[7] = replay[-1] = (0.0, t)  # type: ignore[assignment]
    table = dict.fromkeys(range(300_000), 0.0) | {"last": made()}
    queue = collections.deque(replay)
    found, objects = scan()
    assert {"replay[0][1]", "replay[7][1]", "replay[999999][1]", "table['last']"} <= set(found)
    assert objects < 2_000
    assert table
    assert queue


def test_the_middle_of_a_large_list_is_sampled() -> None:
    history = [[made()] for _ in range(1_000)]
    found, _ = scan()
    places = sorted(int(name.split("[")[1][:-1]) for name in found)
    assert places[:50] == list(range(50))
    assert places[-50:] == list(range(950, 1000))
    assert 90 <= len([place for place in places if 50 <= place < 950]) <= 110
    assert len(history) == 1_000


def test_no_item_is_left_out_of_a_small_container() -> None:
    history = [[made()] for _ in range(200)]
    found, _ = scan()
    assert len(found) == len(history)


def test_depth_and_number_of_objects_are_bounded() -> None:
    chain: list[Any] = []
    inner = chain
    for _ in range(200):
        inner.append([])
        inner = inner[0]
    inner.append(made())
    del inner
    found, _ = scan()
    assert found == {}
    del chain
    many = [[index] for index in range(150)]
    found, objects = scan(budget=Limits(max_objects=50))
    assert objects == 50
    assert many


def test_no_time_means_a_short_scan() -> None:
    history = [[made()] for _ in range(100)]
    _, objects = scan(budget=Limits(max_seconds=0.0))
    assert objects < 100
    assert history


def test_circular_structures_end() -> None:
    first: list[Any] = [made()]
    second = {"back": first}
    first.append(second)
    found, _ = scan()
    assert set(found) == {"first[0]", "second['back'][0]"}


# --- nothing of the user's runs


class Hostile:
    """Whatever is asked of it by ordinary means raises."""

    def __init__(self) -> None:
        object.__setattr__(self, "state", made())

    def _refuse(self, *args: object) -> Any:
        raise AssertionError("user code ran")

    __getattribute__ = __getattr__ = __len__ = __iter__ = __getitem__ = __contains__ = _refuse
    __eq__ = __hash__ = __repr__ = __str__ = __bool__ = __dir__ = __reduce__ = _refuse


class HostileMeta(type):
    def _refuse(cls, *args: object) -> Any:
        raise AssertionError("user code ran")

    __eq__ = __hash__ = __repr__ = __instancecheck__ = __subclasscheck__ = _refuse
    __getattribute__ = _refuse


class HostileDict(dict):  # type: ignore[type-arg]
    __iter__ = keys = values = items = __len__ = __getitem__ = __repr__ = Hostile._refuse


class HostileList(list):  # type: ignore[type-arg]
    __iter__ = __len__ = __getitem__ = __repr__ = __bool__ = Hostile._refuse


class Proxy:
    """A lazy proxy: its ``__class__`` and ``__dict__`` are another object's, made on demand."""

    __slots__ = ()

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise AssertionError("user code ran")

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise AssertionError("user code ran")


def test_hostile_objects_are_read_past() -> None:
    meta = types.new_class(
        "Odd", (), {"metaclass": HostileMeta}, lambda body: body.update(kept=made())
    )
    odd: Any = object.__new__(meta)
    found = scan_variables(
        hostile=Hostile(),
        mapping=HostileDict(k=made()),
        sequence=HostileList([made()]),
        nested={"x": HostileList([Hostile()])},
        proxy=Proxy(),
        odd=odd,
    )
    assert set(found) >= {"hostile.state", "mapping['k']", "sequence[0]", "nested['x'][0].state"}


def test_properties_and_keys_are_not_evaluated() -> None:
    class Key:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            raise AssertionError("user code ran")

        __repr__ = Hostile._refuse

    class Lazy:
        @property
        def state(self) -> Tensor:
            raise AssertionError("user code ran")

    assert set(scan_variables(lazy=Lazy(), table={Key(): made()})) == {"table[<Key>]"}


def test_tensor_subclasses_and_modes_are_not_called() -> None:
    class Loud(Tensor):
        @classmethod
        def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError("user code ran")

    class Mode(torch.overrides.TorchFunctionMode):
        calls = 0

        def __torch_function__(
            self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            Mode.calls += 1
            return function(*args, **(kwargs or {}))

    loud = made().as_subclass(Loud)
    object.__setattr__(loud, "extra", made())
    plain, leaf = made(), nn.Parameter(torch.ones(2))
    with Mode():
        before = Mode.calls
        found = scan_variables(loud=loud, plain=plain, leaf=leaf)
        assert Mode.calls == before
    assert set(found) == {"loud", "loud.extra", "plain"}


def test_no_node_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    class SeenError(Exception):
        pass

    def refuse(self: Tensor) -> None:
        raise SeenError

    monkeypatch.setattr(Tensor, "grad_fn", property(refuse), raising=False)
    loss = made()
    with pytest.raises(SeenError):
        loss.grad_fn  # noqa: B018
    assert "loss" in scan()[0]


def test_reading_a_tensor_makes_it_no_dict() -> None:
    loss = made()
    scan()
    assert not [part for part in gc.get_referents(loss) if type(part) is dict]


def test_a_container_that_another_thread_changes_is_survived() -> None:
    table: dict[int, list[Tensor]] = {}
    queue: collections.deque[list[Tensor]] = collections.deque(maxlen=50)
    stop = threading.Event()

    def change() -> None:
        for number in itertools.count():
            table[number % 97] = [torch.ones(1)]
            table.pop((number * 31) % 97, None)
            queue.append([torch.ones(1)])
            if stop.is_set():
                return

    thread = threading.Thread(target=change)
    thread.start()
    try:
        loss = made()
        for _ in range(50):
            assert "loss" in scan()[0]
    finally:
        stop.set()
        thread.join()
    assert loss is not None


def test_a_function_may_have_more_defaults_than_parameters() -> None:
    def function(last: Any) -> Any:
        return last

    t = made()
    function.__defaults__ = (None, t)
    assert scan()[0]["<default of function>.last"] is t
    function.__defaults__ = (t, None)
    assert "<default of function>.last" not in scan()[0]

"""Numbers and arrays that have left torch are what they would be, and know where they come from."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradscope.collect.traced_numbers import number, origins_of, traced

ONE, TWO = number(1.5, (1,)), number(2.5, (2,))


@pytest.mark.parametrize(
    ("work", "origins"),
    [
        (lambda: ONE + 1, (1,)),
        (lambda: 1 - ONE, (1,)),
        (lambda: ONE * TWO, (1, 2)),
        (lambda: -TWO / 3, (2,)),
        (lambda: sum([ONE, TWO]) / 2, (1, 2)),
        (lambda: max(ONE, TWO), (2,)),
        (lambda: abs(ONE) ** 2, (1,)),
    ],
)
def test_arithmetic_keeps_what_it_comes_from(
    work: Callable[[], Any], origins: tuple[int, ...]
) -> None:
    result = work()
    assert origins_of(result) == origins
    assert isinstance(result, float)


def test_a_number_is_a_float_to_all_others() -> None:
    assert ONE == 1.5
    assert hash(ONE) == hash(1.5)
    assert f"{ONE:.2f} {ONE}" == "1.50 1.5"
    assert json.dumps([ONE]) == "[1.5]"
    assert type(pickle.loads(pickle.dumps(ONE))) is float
    assert type(copy.deepcopy(ONE)) is float
    assert origins_of(1.5) == ()


def test_a_plain_float_is_known_as_long_as_it_is_there() -> None:
    value = float("3.25")
    assert traced(value, (7,), is_bare=True) is value
    assert origins_of(value) == (7,)
    assert origins_of(value + 1) == ()


@pytest.mark.parametrize(
    "work",
    [
        lambda a: a + 1,
        lambda a: 2 * a - np.ones(3),
        np.exp,
        lambda a: np.concatenate([a, np.zeros(2)]),
        lambda a: np.stack([a, a]),
        lambda a: a[1:],
        lambda a: a.reshape(3, 1),
        lambda a: np.asarray(a),
        lambda a: a.mean(),
        lambda a: np.mean(a),
        lambda a: a.tolist()[0],
        lambda a: a[0].item(),
        lambda a: np.where(a > 1, a, 0),
    ],
)
def test_what_numpy_computes_keeps_what_it_comes_from(work: Callable[[Any], Any]) -> None:
    plain = np.array([1.0, 2.0, 3.0])
    result = work(traced(plain, (4,)))
    assert origins_of(result) == (4,)
    np.testing.assert_array_equal(np.asarray(result), np.asarray(work(plain)))


def test_an_array_takes_in_what_is_written_into_it() -> None:
    array = traced(np.zeros(3), (4,))
    array[0] = number(1.0, (5,))
    array += traced(np.ones(3), (6,))
    assert origins_of(array) == (4, 5, 6)
    assert type(pickle.loads(pickle.dumps(array))) is np.ndarray

"""The ends of backward calls tell when a node was built, in bounded memory."""

from __future__ import annotations

import random

import pytest

from gradscope.collect import generations
from gradscope.collect.generations import OTHER, Generations


def test_old_calls_are_told_less_exactly_and_new_ones_exactly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = iter(range(0, 100_000, 10))
    monkeypatch.setattr(generations, "next_sequence_nr", lambda: next(numbers))
    monkeypatch.setattr(generations, "_MOST", 100)
    ends = Generations()
    for call in range(1, 1_001):
        ends.see()
        ends.end(call, None)
        assert ends.newest == 10 * call
        assert ends.latest == call
        own = ends._threads[0]
        assert len(own.ended_at) <= len(ends._calls) == len(ends._places) <= 100
    for call in range(1, 1_001):
        assert ends.of(10 * call + 3) <= call
        earlier, later = ends.around(10 * call + 3)
        assert earlier is None or earlier[0] <= 10 * call
        assert later is None or later[0] > 10 * call
    assert [ends.of(10 * call + 3) for call in range(951, 1_001)] == [*range(951, 1_001)]


def test_the_ends_of_calls_are_told_in_each_thread_as_if_all_were_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread's numbers are noted when it builds, so that many idle threads cost a call nothing."""
    draw = random.Random(5)
    numbers = [0, 0, 0]
    monkeypatch.setattr(generations, "next_sequence_nr", lambda: numbers[0])
    monkeypatch.setattr(generations, "_MOST", 40)
    ends = Generations()
    noted: list[list[tuple[int, int]]] = [
        [],
        [],
        [],
    ]  # of each thread its next number, and the call
    for call in range(1, 150):
        for thread in draw.choices(range(3), k=draw.randrange(3)):
            new = len(noted[0]) and not noted[thread]
            noted[thread] += [(numbers[thread], noted[0][-1][1])] if new else []
            numbers[thread] += 1
            if thread:
                ends.see_built(thread * OTHER + numbers[thread] - 1, counts=False)
        ends.see()
        ends.end(call, None)
        for thread in range(3):
            if not thread or numbers[thread]:
                noted[thread].append((numbers[thread], call))
        if len(noted[0]) > 40:
            kept = {call for _, call in noted[0][:20:2] + noted[0][20:]}
            noted = [[end for end in each if end[1] in kept] for each in noted]
        for thread in range(3):
            for number in range(numbers[thread]):
                earlier, later = ends.around(thread * OTHER + number)
                before = [n for n, _ in noted[thread] if n <= number]
                after = [n for n, _ in noted[thread] if n > number]
                found = [[] if each is None else [each[0] % OTHER] for each in (earlier, later)]
                assert found == [before[-1:], after[:1]]
                last = [c for n, c in noted[thread] if n <= number]
                assert ends.of(thread * OTHER + number) == (last[-1] if last else 0)


def test_what_a_thread_builds_that_is_first_met_in_a_call_is_younger_than_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(generations, "next_sequence_nr", lambda: 7)
    ends = Generations()
    ends.see()
    ends.end(1, None)
    first = 5 * OTHER
    ends.see_built(first, counts=True)
    ends.end(2, None)
    ends.see_built(first + 1, counts=True)
    ends.end(3, None)
    assert [ends.of(number) for number in (first, first + 1)] == [1, 2]
    assert (ends.built, ends.others) == (2, [first])


def test_time_goes_on_while_only_the_engine_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations, "next_sequence_nr", lambda: 7)
    ends = Generations()
    ends.see()
    times, first = [ends.time_of(6)], 5 * OTHER
    for call in range(3):
        ends.see_built(first + call, counts=True)
        ends.end(call + 1, None)
        times += [ends.time_of(first + call), ends.now]
    assert sorted({*times, ends.time_of(7)}) == [*times, ends.time_of(7)]


def test_what_one_of_two_threads_may_have_built_is_no_older_than_is_certain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1]
    monkeypatch.setattr(generations, "next_sequence_nr", lambda: now[0])
    ends, worker, other = Generations(), 5 * OTHER, 6 * OTHER
    for call, (own, in_worker, in_other) in enumerate([(30, 20, 50), (60, 40, 50)], 1):
        now[0] = own
        ends.see()
        ends.see_built(worker + in_worker - 1, counts=False)
        ends.see_built(other + in_other - 1, counts=False)
        ends.end(call, None)
    now[0] = 70
    ends.see()
    ends.see_built(worker + 45, counts=False)
    # The worker's node 45 saved something; its node 44, which it leads to, did not.
    assert ends.tell_threads([worker + 45, 44], [True, False], [(1,), ()]) == [
        worker + 45,
        worker + 44,
    ]
    # A node that a worker has built: the one that had built as many by now.
    assert ends.tell_threads([65, 44, 61], [True, False, True], [(1,), (2,), ()])[1] == worker + 44


def test_what_a_thread_saves_before_its_first_node_is_no_node() -> None:
    ends, worker = Generations(), 3 * OTHER
    built = ends.built
    ends.see_built(worker - 1, counts=True)
    assert (ends.built, ends.others) == (built, [worker])
    ends.see_built(worker, counts=True)
    assert ends.built == built + 1

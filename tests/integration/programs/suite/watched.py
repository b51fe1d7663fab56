"""Tests of an imagined project; the name of each says how it ends under `pytest --gradscope`."""

import unittest
from contextlib import ExitStack

import pytest
import torch


def shared():
    weight = torch.ones(3, requires_grad=True)
    return (weight * weight).exp()


def run_twice():
    """Run a graph backward twice, and swallow what the engine raises."""
    middle = shared()
    middle.sum().backward()
    try:
        middle.mean().backward()
    except RuntimeError:
        pass


@pytest.fixture
def trained():
    run_twice()


@pytest.fixture
def freed():
    loss = shared().sum()
    loss.backward()
    return loss


def test_passes():
    shared().sum().backward()


def test_passes_as_it_expects_the_error():
    middle = shared()
    middle.sum().backward()  # GS102, which comes true
    with pytest.raises(RuntimeError, match="second time"):
        middle.mean().backward()


def test_passes_as_it_expects_another_error_made_of_it(freed):
    with pytest.raises(ValueError, match="translated"):
        try:
            freed.backward()
        except RuntimeError as error:
            raise ValueError("translated") from error


@pytest.mark.parametrize("expectation", [pytest.raises(RuntimeError)])
def test_passes_as_an_argument_expects_it(freed, expectation):
    with expectation:
        freed.backward()


def test_passes_as_raises_calls_it(freed):
    pytest.raises(RuntimeError, freed.backward)


class TestCase(unittest.TestCase):
    def test_passes_as_unittest_expects_it(self):
        loss = shared().sum()
        loss.backward()
        with self.assertRaises(RuntimeError):
            loss.backward()


@pytest.mark.xfail(raises=RuntimeError, strict=True)
def test_fails_as_marked(freed):
    freed.backward()


@pytest.mark.gradscope(expect=["GS101"])
def test_passes_as_the_marker_expects_it():
    run_twice()


@pytest.mark.gradscope(allow="backward-through-freed-graph")
def test_passes_as_the_marker_allows_it():
    run_twice()


@pytest.mark.gradscope(expect=["GS201"])
def test_is_failed_for_what_did_not_come():
    shared().sum().backward()


def test_is_failed_for_what_it_swallows():
    run_twice()


def test_is_failed_for_what_a_fixture_does(trained):
    pass


def test_is_failed_for_what_it_swallows_before_it_expects_another(freed):
    run_twice()
    with pytest.raises(RuntimeError):
        freed.backward()


def test_raises_by_itself(freed):
    freed.backward()


def test_passes_and_only_warns():
    history = []
    for _ in range(12):
        history.append(shared())
        history[-1].sum().backward(retain_graph=True)


def test_passes_and_asks_the_fixture(gradscope, freed):
    with ExitStack() as stack:
        stack.enter_context(pytest.raises(RuntimeError))
        freed.backward()
    assert [finding.code for finding in gradscope.findings] == ["GS101"]

"""The words about a tensor with a graph that is copied, or sent to another process."""

from __future__ import annotations

import copy
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from torch import nn

import gradscope
from gradscope.model import Certainty, FixKind, Site
from gradscope.rules import gs604
from gradscope.rules.gs604 import Crossing
from tests.rules.saying import check_wording

COPY, STORE = Site("train.py", 30), Site("train.py", 12)
COPIED = Crossing(False, COPY, "net.hidden", "f32[4, 8]", STORE, Site("train.py", 10))


def test_it_names_the_holder_the_line_that_stored_it_and_the_graph_s() -> None:
    found = gs604.finding(COPIED._replace(is_module=True, after=3))
    check_wording(found)
    assert found.message == "`net.hidden` has a graph and cannot be copied"
    assert (found.site, found.backward_call, found.certainty) == (COPY, 3, Certainty.OBSERVED)
    assert [(r.role, r.site and r.site.line) for r in found.related] == [
        ("held_by", 12),
        ("created", 10),
    ]
    assert [fix.kind for fix in found.fixes] == [FixKind.DETACH, FixKind.OTHER]


def test_a_line_is_named_once() -> None:
    assert gs604.finding(COPIED._replace(stored=COPY, made=COPY)).related == ()
    assert len(gs604.finding(COPIED._replace(made=STORE)).related) == 1


def test_what_is_sent_without_a_name_is_told_where_it_was_made() -> None:
    found = gs604.finding(Crossing(True, None, "", "f32[]", made=STORE))
    check_wording(found)
    assert (found.site, found.certainty) == (STORE, Certainty.CERTAIN)
    assert found.message.startswith("a tensor (f32[]) has a graph and cannot be sent to another")
    assert found.fix is not None
    assert found.fix.message == "send it without its graph (`.detach()`) or as a number (`.item()`)"


def test_what_torch_keeps_itself_was_stored_by_no_line() -> None:
    found = gs604.finding(COPIED._replace(by="torch.nn.utils.weight_norm"))
    check_wording(found)
    assert found.related[0].site is None
    assert found.fix is not None
    assert "torch.nn.utils.parametrizations.weight_norm" in found.fix.message


def test_a_copy_whose_error_is_caught_is_not_told() -> None:
    net = nn.Linear(2, 2)
    net.hidden = net(torch.ones(1, 2))
    with gradscope.watch() as scope, pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(net)
    assert scope.findings == []


def test_a_copy_that_ends_the_watch_is_told() -> None:
    net = nn.Linear(2, 2)
    net.hidden = net(torch.ones(1, 2))
    with pytest.raises(RuntimeError, match="deepcopy"), gradscope.watch() as scope:
        copy.deepcopy([net])
    (found,) = scope.findings
    assert found.message.startswith("`[net][0].hidden` has a graph")


def test_what_the_program_pickles_itself_is_not_told() -> None:
    reducers: Any = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    torch_s = reducers[torch.Tensor]
    out = nn.Linear(2, 2)(torch.ones(1, 2))
    with gradscope.watch() as scope, pytest.raises(RuntimeError, match="Cowardly refusing"):
        ForkingPickler.dumps({"out": [out]})
    assert reducers[torch.Tensor] is torch_s
    assert [each.message for each in scope.findings] == [
        "`out` has a graph and cannot be sent to another process"
    ]
    try:
        ForkingPickler.register(torch.Tensor, lambda tensor: (torch.tensor, (tensor.tolist(),)))
        with gradscope.watch() as scope:
            ForkingPickler.dumps({"out": [out]})
    finally:
        reducers[torch.Tensor] = torch_s
    assert scope.findings == []

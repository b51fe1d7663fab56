"""``gradscope.uses``: what it says of a tensor is what the engine does."""

from __future__ import annotations

import contextlib

import pytest
import torch

import gradscope
from gradscope.api.graphs import Use

PROGRAMS = {
    "elementwise": """
b, c = torch.rand(4, 4), torch.rand(4, 4)
d = a * b
e = d + c
f = e.exp()
g = (f * 3).sigmoid().tanh() / (c + 1)
root = g.sum()
""",
    "matrices": """
b, c = torch.rand(4, 4), torch.rand(4, 4, requires_grad=True)
d = a @ b
e = d @ c
f = torch.cat([d, e]).relu().softmax(0)
g = f.std() + f.norm() + f.max(1).values.sum()
root = g.pow(2)
""",
    "views": """
h = a.exp()
v, w = h[0], h.t()
k = v.sin() + w[1]
m = h.detach()
n = (a * 2).view(16)
p = n[:4]
root = (p * k).sum()
""",
    "module": """
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
weight, first, bias = model[2].weight, model[0].weight, model[2].bias
x = torch.rand(2, 4)
hidden = model[:2](x)
out = model[2](hidden)
root = out.square().mean() + a.sum()
""",
    "normalised": """
x = torch.rand(6, 4)
running, variance = torch.zeros(4), torch.ones(4)
h = x @ a
n = torch.nn.functional.batch_norm(h, running, variance, training=True)
q = torch.nn.functional.layer_norm(n, (4,))
root = torch.nn.functional.cross_entropy(q, torch.tensor([0, 1, 2, 3, 0, 1]))
""",
    "nothing saved": """
b = torch.rand(4, 4)
c = a + b
d = c.t().view(16) if False else c.t()
root = d.sum()
""",
    "freed": """
b = torch.rand(4, 4)
c = a * b
d = c + 1
s = a + b
root = d.exp().sum()
root.backward()
""",
    "half freed": """
b = torch.rand(4, 4)
c = (a * b).exp()
d = c.sin()
c.sum().backward()
root = d.sum()
""",
    "retained": """
b = torch.rand(4, 4)
c = (a * b).exp()
root = c.sin().sum()
root.backward(retain_graph=True)
""",
}


def run(source: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    names: dict[str, torch.Tensor] = {"torch": torch, "gradscope": gradscope}  # type: ignore[dict-item]
    exec("a = torch.rand(4, 4, requires_grad=True)\n" + source, names)
    return names


def told(source: str) -> list[Use]:
    names = run(source)
    exec("found = gradscope.uses(root)", names)
    return list(names["found"])


def fails(root: torch.Tensor) -> bool:
    """Whether the engine refuses; a graph that was freed before makes no difference here."""
    try:
        root.sum().backward()
    except RuntimeError as error:
        assert "second time" in str(error) or "inplace" in str(error)
        return True
    return False


@pytest.mark.full(but=6)
@pytest.mark.parametrize("watched", [False, True], ids=["without a watch", "in a watch"])
@pytest.mark.parametrize("source", PROGRAMS.values(), ids=PROGRAMS)
def test_the_engine_agrees(source: str, watched: bool) -> None:
    with gradscope.watch() if watched else contextlib.nullcontext():
        found = told(source)
        assert {"a", "root"} <= {use.name for use in found}
        for use in found:
            names = run(source)
            failed_before = fails(run(source)["root"])
            with torch.no_grad():
                names[use.name].add_(1) if names[use.name].is_floating_point() else names[
                    use.name
                ].mul_(0)
            if not failed_before:  # else it fails whatever is changed
                assert use.in_place is not fails(names["root"]), use
            tensor = run(source)[use.name]
            if tensor.requires_grad:
                assert use.backward is not fails(tensor), use
            else:
                assert not use.backward
                assert "does not require grad" in use.backward_why


def test_parameters_without_a_variable_are_listed_where_they_are_saved() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    loss = model(torch.rand(1, 2)).sum()
    uses = {use.name: use for use in gradscope.uses(loss)}
    assert not uses["model.1.weight"].in_place
    assert "AddmmBackward0 saved it as `mat2`" in uses["model.1.weight"].in_place_why
    assert (
        "model.0.weight" not in uses
    )  # what it computes does not need it: the input asks for no gradient


def test_it_says_why() -> None:
    a = torch.rand(3, requires_grad=True)
    scale = torch.rand(3)
    loss = (a * scale).sum()
    free = a.sum()
    with gradscope.watch():
        loss.backward()
        printed = str(gradscope.uses(loss))
    assert free.requires_grad
    assert "yes, any number of times" in printed
    assert "no: what MulBackward0 saved was freed" in printed
    assert "yes, under no_grad" in printed


def test_wrong_arguments_are_told() -> None:
    with pytest.raises(gradscope.GradscopeError, match="it is a leaf"):
        gradscope.uses(torch.rand(2, requires_grad=True))
    with pytest.raises(gradscope.GradscopeError, match="no tensor given"):
        gradscope.uses()

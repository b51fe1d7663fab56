"""Sparse tensors, which have no storage of their own: what the engine says of them, and what may be done."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

import gradscope

LAYOUTS = {
    "coo": torch.Tensor.to_sparse,
    "csr": torch.Tensor.to_sparse_csr,
    "csc": torch.Tensor.to_sparse_csc,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sparse_tensor_that_a_graph_saved_is_told_of_in_the_engine_s_words(layout: str) -> None:
    texts = []
    for watch in (nullcontext(), gradscope.watch()):
        with watch:
            factor = LAYOUTS[layout](torch.eye(3))  # type: ignore[operator]
            product = factor * torch.ones((), requires_grad=True)
            uses = {use.name: use.in_place for use in gradscope.uses(product)}
            assert not uses["factor"]
            factor.mul_(1)
            with pytest.raises(RuntimeError) as raised:
                product.backward(torch.ones_like(product))
            texts.append(str(raised.value))
    assert texts[0] == texts[1]
    assert layout == "coo" or "SparseCsr" in texts[0]

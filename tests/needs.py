"""Skips a test on a torch that lacks what its program or its expectation is about, and says what that is."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch._functorch.config
import torch.utils.checkpoint

DETACHED_IS_TOLD = "_C._autograd.SavedTensor.unpack"
"""Without hooks, whether a saved input was detached in place is not told where this is missing."""
SAVED_IS_TOLD = "_C._autograd.SavedTensor.data"
"""What a SavedTensor holds; where this is missing, only a node can be asked for what it saved."""
DONATES_BUFFERS = "_functorch.config.donated_buffer"
"""Compiled code gives the memory of what it saved to its own backward."""
TRACES_PAST_HOOKS = "_C._autograd._saved_tensors_hooks_set_tracing"
"""What is compiled is traced without the program's own saved-tensor hooks; else the compiler fails on them."""

TELLS_PAIRS = "_C._autograd._top_saved_tensors_default_hooks"
"""Torch tells which pair of default saved-tensor hooks it uses."""
SELECTS_CHECKPOINTS = "utils.checkpoint.CheckpointPolicy"
"""A checkpoint can save what a policy names."""


def has(path: str) -> bool:
    """Whether torch has something at a dotted path."""
    found: Any = torch
    for name in path.split("."):
        found = getattr(found, name, None)
    return found is not None


def needs(*paths: str) -> pytest.MarkDecorator:
    """Skip where torch has nothing at one of these dotted paths."""
    missing = [f"torch.{path}" for path in paths if not has(path)]
    return pytest.mark.skipif(bool(missing), reason=f"this torch has no {' and no '.join(missing)}")


def since(version: str, what: str) -> None:
    """Skip a test on a torch that is older: ``what`` is what only this version does."""
    if tuple(map(int, torch.__version__.split(".")[:2])) < tuple(map(int, version.split("."))):
        pytest.skip(f"before torch {version}: {what}")


def pads(layout: torch.layout) -> bool:
    """Whether torch pads nested tensors of this layout. One that does not pad jagged ones crashes on some."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.as_nested_tensor([torch.ones(1, 1)], layout=layout)
    try:
        torch.nested.to_padded_tensor(nested, 0.0)
    except NotImplementedError:
        return False
    return True

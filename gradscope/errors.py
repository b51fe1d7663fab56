"""The exceptions that gradscope raises itself."""

from __future__ import annotations


class GradscopeError(Exception):
    """gradscope was used wrongly or met bad input: the text says what, where, and what to do next."""


class FreedGraphError(RuntimeError):
    """Raised in the engine's place, before it runs, when a backward call needs saved tensors that were freed."""


class StaleSavedTensorError(RuntimeError):
    """Raised in the engine's place, before it runs, when a backward call needs a tensor that was modified in place."""

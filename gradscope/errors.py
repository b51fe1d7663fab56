"""The exceptions that gradscope raises itself."""

from __future__ import annotations


class GradscopeError(Exception):
    """Raised for wrong use or bad input: the text says what is wrong, where, and what to do."""


class FreedGraphError(RuntimeError):
    """Raised before the engine runs, when a backward call needs saved tensors that were freed."""


class StaleSavedTensorError(RuntimeError):
    """Raised before the engine runs, when a backward call needs a tensor modified in place."""

"""Lists the words of PyTorch and Python that decide what a call does with a graph."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from gradscope.code.changes import ADDS, ADDS_IF_DROPPED, is_in_place


class CallKind(Enum):
    """What a call does with the graphs of its receiver and arguments."""

    HARMLESS = auto()  # looks at values or metadata: nothing is built, nothing is kept
    BACKWARD = auto()
    GRAD = auto()  # autograd.grad: backward through the first argument only
    NO_GRAD = auto()  # makes a context manager (or decorator) under which nothing is built
    PART = auto()  # hands on what it was given, or an element of it
    APPEND = auto()  # puts its arguments into the receiver
    CLEAR = auto()  # empties the receiver
    DETACH_IN_PLACE = auto()  # cuts the receiver off from its graph
    IN_PLACE = auto()  # writes into the receiver
    UNKNOWN = auto()


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


HARMLESS_ATTRIBUTES: Final = _words(
    "data shape dtype device grad requires_grad is_leaf ndim layout itemsize nbytes is_cuda "
    "is_sparse is_quantized is_meta names output_nr retains_grad _version __class__ __name__ "
    "__dict__"
)

ADDS_ALL: Final = _words("extend extendleft update")
"""Methods that add each element of what they are given."""

DRAWS: Final = _words("choice choices sample")
"""Functions that take some elements at random."""

_HARMLESS_BUILTINS: Final = _words(
    "print float int bool complex len str repr ascii format isinstance issubclass type id hash "
    "hasattr callable any all input vars dir range"
)

# Tensor methods and torch functions whose result has no graph; hooks and flags; writers of logs.
_HARMLESS_ANYWHERE: Final = _words(
    "item detach tolist numpy size dim ndimension numel nelement element_size data_ptr stride "
    "storage_offset untyped_storage storage is_contiguous is_floating_point is_complex is_tensor "
    "is_nonzero get_device argmax argmin argsort eq ne lt le gt ge equal allclose isclose isnan "
    "isinf isfinite isneginf isposinf any all nonzero count_nonzero bool int long short byte "
    "result_type can_cast zeros_like ones_like empty_like full_like rand_like randn_like "
    "randint_like new_zeros new_ones new_empty new_full new_tensor tensor requires_grad_ "
    "retain_grad register_hook register_post_accumulate_grad_hook is_grad_enabled zero_grad "
    "add_scalar add_scalars set_postfix set_postfix_str set_description debug info warning error "
    "critical"
)

_PART_BUILTINS: Final = _words(
    "list tuple dict set frozenset zip enumerate reversed sorted iter aiter next anext filter max "
    "min deque OrderedDict defaultdict chain SimpleNamespace"
)
PART_METHODS: Final = _words(
    "pop popleft popitem get items values keys get_nowait move_to_end deque OrderedDict chain "
    "SimpleNamespace"
)


def kind_of_call(path: str, attribute: str, *, dropped: bool) -> CallKind:
    """Return what calling ``path`` does; ``dropped``: the call is a statement, its result is thrown
    away.

    The path may be empty where it is not known; ``attribute`` is its last name in any case.
    """
    is_method = path != attribute  # or a function of a module
    if attribute in ("backward", "manual_backward"):
        return CallKind.BACKWARD
    if attribute == "grad":
        return CallKind.GRAD
    if attribute in ("no_grad", "inference_mode", "set_grad_enabled"):
        return CallKind.NO_GRAD
    if attribute in _HARMLESS_ANYWHERE and is_method:
        return CallKind.HARMLESS
    if not is_method:
        if path in _HARMLESS_BUILTINS:
            return CallKind.HARMLESS
        return CallKind.PART if path in _PART_BUILTINS else CallKind.UNKNOWN
    if attribute in PART_METHODS:
        return CallKind.PART
    if attribute in ADDS or (dropped and attribute in ADDS_IF_DROPPED):
        return CallKind.APPEND
    if attribute == "clear":
        return CallKind.CLEAR
    if attribute == "detach_":
        return CallKind.DETACH_IN_PLACE
    if is_in_place(attribute):
        return CallKind.IN_PLACE
    return CallKind.UNKNOWN

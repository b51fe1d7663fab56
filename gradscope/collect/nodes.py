"""Reads torch's nodes without running them: their kind, what they saved, what was freed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.autograd.graph import Node, increment_version

from gradscope.collect import slots
from gradscope.collect.marks import Packed, Stale
from gradscope.collect.walk import Following
from gradscope.program.tensors import PLAIN, is_leaf, is_parameter, version_of
from gradscope.torch_private import (
    CHECKPOINT_FILE,
    CLEARS,
    RAW_SAVED,
    SAVED,
    SAVED_TENSORS_ARE_READABLE,
    DisableTorchDispatch,
    DisableTorchFunction,
    FunctionNode,
    SavedTensor,
    dispatch_modes,
    function_of,
    inputs_of,
    unpack_saved,
)

DETACHED_TEXT = "Trying to use a saved tensor that has been detached in-place"
_STALE_TEXTS = (slots.MODIFIED, slots.REFUSED, DETACHED_TEXT)
CLONE = "CloneBackward0"
_EDGES = {"self": 0, "other": -1}
"""By the name of an argument, which edge of the node leads to where it was made. The edge stays
when the tensor is detached in place: without one it never needed a gradient. (So in each of 174
kinds of nodes that torch's own samples of its operations make.)
"""


_ARGUMENTS = frozenset({*_EDGES, "input", "weight", "mat1", "mat2", "tensors", "batch1", "batch2"})
"""Names that no output has in torch's formulas for derivatives. Of a slot with another name it is
taken that an output may be saved in it.
"""


class Kind:
    """What a Python type of nodes tells of its nodes."""

    def __init__(self, kind: type) -> None:
        self.names = tuple(a[len(RAW_SAVED) :] for a in dir(kind) if a.startswith(RAW_SAVED))
        self.reads = tuple((n, SAVED + n, RAW_SAVED + n, _EDGES.get(n)) for n in self.names)
        """Of each saved tensor its name, the attribute that unpacks it, that of the saved tensor
        itself, and the edge that its name tells of.
        """
        self.results = tuple(read[:3] for read in self.reads if read[0] not in _ARGUMENTS)
        self.is_leaf = kind.__name__ == "AccumulateGrad"
        self.is_slices = kind.__name__ == "CopySlices"
        """An in-place operation on a view. It wraps the operation's own node, unseen, and drops it
        when freed.
        """
        self.is_unnamed = kind.__name__ == "CppFunction"
        """A node of C++ that Python cannot ask what it saved."""
        self.is_function = issubclass(kind, FunctionNode)
        self.is_compiled = self.is_function and kind.__name__ == "CompiledFunctionBackward"
        self.is_hidden = self.is_slices or self.is_unnamed or self.is_function
        self.saves = bool(self.names) or self.is_hidden


known_kinds: dict[type, Kind] = {}
_functions = WeakKeyDictionary[type, Kind]()
"""Those of Python Functions, which a program may define in a loop."""


def kind_of(kind: type) -> Kind:
    """Return the kind for a type of nodes."""
    known = known_kinds.get(kind) or _functions.get(kind)
    if known is None:
        known = Kind(kind)
        (_functions if known.is_function else known_kinds)[kind] = known
    return known


def held(node: Node, kind: Kind) -> list[tuple[str, Any]]:
    """Return what the node saved and still has: its name, and the tensor or what a pack hook
    returned.

    Unpacks nothing.
    """
    found = []
    for name, _, raw, _ in kind.reads:
        try:
            value = getattr(node, raw) if SAVED_TENSORS_ARE_READABLE else slots.saved(node, name)
        except RuntimeError:  # the engine's own error for a list of saved tensors that was freed
            continue
        data = getattr(value, "data", None)
        if data is not None:
            found.append((name, data))
        elif isinstance(value, tuple | list):
            listed = [(f"{name}[{i}]", each.data) for i, each in enumerate(value) if each]
            found += [entry for entry in listed if entry[1] is not None]
    return found


def packs_in(node: Node, kind: Kind) -> list[Packed]:
    """Return what our hooks have packed of what the node saved and still has."""
    return [data for _, data in held(node, kind) if isinstance(data, Packed)]


def has_yet_to_save(node: Node, kind: Kind) -> bool:
    """Return whether there is an output, or may be one, that a node has not saved.

    Called while torch saves a tensor: what a node is to save in all is there, unless it is just
    being built.
    """
    try:
        for name, attribute, raw in kind.results:
            value = getattr(node, raw) if SAVED_TENSORS_ARE_READABLE else slots.saved(node, name)
            is_list = isinstance(value, tuple | list)  # which raises if it was freed
            empty = not value if is_list else value is not None and value.data is None
            if empty and not getattr(node, attribute):  # so does this
                return True
    except RuntimeError:
        pass
    return False


def was_freed(node: Node, kind: Kind) -> bool:
    """Return whether the node saved something that is gone now. Never runs an unpack hook."""
    if kind.is_slices:
        return slices_were_freed(node)
    if is_foreach(node, kind):
        return slots.FREED_TEXT in str(_error_of_foreach(node))
    for name in kind.names:
        try:
            value = slots.saved(node, name)
            gone = not isinstance(value, tuple | list) and value is not None and value.data is None
            if gone and value.unpack_hook is None:
                getattr(node, SAVED + name)
        except RuntimeError as error:
            if slots.FREED_TEXT in str(error):
                return True
    return False


_DIMENSIONS = 65  # one more than the 64 that torch's operations take


def is_foreach(node: Node, kind: Kind) -> bool:
    """Return whether this is a foreach operation of torch's that shows nothing of what it saved."""
    return kind.is_unnamed and node.name().startswith("Foreach")


def slices_were_freed(node: Node) -> bool:
    """Return whether a CopySlices has dropped the node that it wraps.

    It shows nothing of that, but is the first thing that torch checks when it is called. The
    gradient given has a shape that torch refuses next, before the wrapped node runs.
    """
    with DisableTorchDispatch():
        given = torch.empty((0,) * _DIMENSIONS, device="meta")
    return slots.FREED_TEXT in str(_error_of(node, given))


def slices_may_be_stale(node: Node, by_function: bool) -> bool:
    """Return whether what the node that a CopySlices wraps has saved was modified in place since.

    Torch unpacks that before it computes anything with the gradient that it is given. A Function
    is not run: of what may be saved ``by_function`` it is not known.
    """
    for dtype in (torch.float32, torch.complex64):  # a view as numbers of the other kind needs it
        with DisableTorchDispatch(), torch.no_grad():
            error = _error_of(node, torch.zeros((), dtype=dtype, device="cpu"))
        is_hidden = isinstance(error, slots.OfTheProgramError) and by_function
        if is_hidden or any(text in str(error) for text in _STALE_TEXTS):
            return True
    return False


def _error_of_foreach(node: Any) -> RuntimeError | None:
    """Return what torch raises for what the node of a foreach operation saved, if anything.

    Given no gradient it computes nothing, but first it unpacks its lists. Where hooks of the
    program's have packed these they do not run: what they would be called for is there, and torch
    checks no versions then.
    """
    return _error_of(node, *[None] * inputs_of(node))


def _error_of(node: Any, *gradients: torch.Tensor | None) -> RuntimeError | None:
    """Return what a node raises when it is called with no engine, and so with none of its hooks."""
    with DisableTorchDispatch(), DisableTorchFunction():
        try:
            slots.guarded(lambda: node(*gradients))
        except RuntimeError as error:
            return error
    return None


def _stale_foreach(node: Node) -> list[Stale]:
    """Return the stale tensor that torch names when the node of a foreach operation is asked: one
    like it, as the node does not show it. Of a view that it refuses to use torch names none: one
    like the first result.
    """
    text = str(_error_of_foreach(node))
    versions = (1, 0) if slots.REFUSED in text else slots.versions_in(text)
    if versions is None:
        return []
    result = getattr(node, "_input_metadata", [torch.empty(())])[0]  # not before torch 2.6
    sizes = re.search(r" \[([\d, ]*)\]\]", text)
    shape = result.shape if sizes is None else [int(size) for size in sizes[1].split(",") if size]
    like = torch.empty((), dtype=result.dtype, device="cpu").expand(shape)
    for _ in range(versions[0]):
        increment_version(like)
    return [Stale(like, versions[1])]


def sizes_of(node: Node, kind: Kind) -> list[int] | None:
    """Return the bytes of each tensor that a node saved, without unpacking anything: 0 for tensors
    that hooks of the program have packed.

    Return None for tensor subclasses, whose code must not run; if such hooks could not be
    recognized later; and if torch raises: for a list that was freed, and for sparse tensors, which
    have no size.
    """
    sizes = []
    try:
        for each in (one for name in kind.names for one in slots.each_saved(node, name)):
            data: Any = each.data
            if data is None:
                continue
            ours = isinstance(data, Packed)
            if data.theirs is not None if ours else each.unpack_hook is not None:
                if not SAVED_TENSORS_ARE_READABLE:
                    return None
                sizes.append(0)
                continue
            tensor = data.tensor if ours else data
            if type(tensor) not in PLAIN:
                return None
            sizes.append(0 if is_parameter(tensor) else tensor.nbytes)
    except RuntimeError:
        return None
    return sizes


def packed_by_theirs(node: Node, name: str, met: set[int]) -> int | None:
    """Count the saved tensors of a node that hooks of the program have packed; unpack none of them.

    Return None if one of them is not there, or stands for a checkpoint whose inputs are stale.
    ``met`` has the ids of the hooks whose checkpoints were checked.
    """
    count = 0
    for each in slots.each_saved(node, name):
        unpack = each.unpack_hook
        if unpack is None:
            continue
        count += 1
        if each.data is None:
            return None
        if id(unpack) not in met:
            met.add(id(unpack))
            if stale_inputs_of_checkpoint(unpack):
                return None
    return count


def stale_by_engine(node: Node, kind: Kind) -> list[Stale]:
    """Return the saved tensors that were modified or detached in place since, by the engine's own
    check.

    Unpacks what was saved without hooks, which runs no code of the program's, and nothing else.
    """
    found: list[Stale] = []
    if dispatch_modes():
        return found  # the program's mode would see the unpacking
    if is_foreach(node, kind):
        return _stale_foreach(node)
    for name in kind.names:
        try:
            saved = slots.each_saved(node, name)
        except RuntimeError:  # a freed list
            continue
        for each in saved:
            found += stale_inputs_of_checkpoint(each.unpack_hook)
        if kind.is_function:  # it may have saved None: one that was freed has no list any more
            saved = [each for each in saved if each.data is not None]
        if not saved or not all(map(_can_be_unpacked, saved)):
            continue
        if kind.is_function and getattr(function_of(type(node)), CLEARS, False):
            found += chain.from_iterable(map(_stale_alone, saved))
            continue
        try:
            attribute = "saved_tensors" if kind.is_function else SAVED + name
            read, by_hooks = slots.unpacked(node, attribute)
        except RuntimeError as error:
            data = next((s.tensor for each in saved for s in _stale_alone(each)), saved[0].data)
            if (then := slots.version_then(error, data)) is not None:
                found.append(Stale(data, then, name))
        else:
            if type(read) in PLAIN and was_detached(saved[0], read):
                found.append(Stale(read, version_of(read), name))
            elif by_hooks:
                slots.let_go(read, by_hooks)
    return found


def _stale_alone(saved: Any, *, is_input: bool = False) -> Iterator[Stale]:
    """Yield what a saved tensor keeps if it was modified in place since.

    It is unpacked for no node, which notices nothing; so of an output this is not known, and only
    of what is no output whether it was detached.
    """
    try:
        with DisableTorchDispatch(), DisableTorchFunction():
            (unpack_saved or type(saved).unpack)(saved)
    except RuntimeError as error:
        then = slots.version_then(error, saved.data)
        if then is not None:
            yield Stale(saved.data, then)
        elif is_input and DETACHED_TEXT in str(error):
            yield Stale(saved.data, version_of(saved.data))


def are_whole(nodes: Iterable[Node]) -> bool:
    """Return whether all these nodes are surely whole: torch takes all that they saved, and no hook
    would run to unpack it.
    """
    if not SAVED_TENSORS_ARE_READABLE or dispatch_modes():
        return False
    try:
        with DisableTorchDispatch(), DisableTorchFunction():
            for node in nodes:
                kind = known_kinds.get(type(node)) or kind_of(type(node))
                if kind.is_hidden:
                    return False
                for name, attribute, raw, _ in kind.reads:
                    saved = getattr(node, raw)
                    if saved.unpack_hook is not None:
                        return False
                    if name in _ARGUMENTS:
                        unpack_saved(saved)  # for no node: so torch also sees what was detached
                    elif not _is_taken(node, attribute, saved):
                        return False
    except (AttributeError, RuntimeError):  # a list; freed or stale
        return False
    return True


def held_if_whole(node: Node, kind: Kind, following: Following) -> list[tuple[str, Any]] | None:
    """Return what the node with these edges holds, as ``held`` does, if it is surely whole.

    What needed no gradient nobody can detach.
    """
    if kind.is_hidden:
        return None
    found: list[tuple[str, Any]] = []
    try:
        for name, attribute, raw, edge in kind.reads:
            saved = getattr(node, raw)
            if saved.unpack_hook is not None:
                return None
            if name in _ARGUMENTS:
                data = getattr(node, attribute)
                is_made = edge is None or following[edge][0] is not None
                if is_made and data is not None and data.is_leaf:
                    unpack_saved(saved)
            else:
                data = saved.data
                if not _is_taken(node, attribute, saved):
                    return None
            if data is not None:
                if type(data) not in PLAIN:
                    return None
                found.append((name, data))
    except (AttributeError, RuntimeError):
        return None
    return found


def _is_taken(node: Node, attribute: str, saved: Any) -> bool:
    """Return whether torch takes what may be an output of the node; raise its error if not."""
    read = getattr(node, attribute)
    return read is None or not read.is_leaf or not was_detached(saved, read)


def _can_be_unpacked(saved: Any) -> bool:
    """Return whether a saved tensor is there, and can be unpacked with no code of the program's.

    Before torch 2.12 that of a subclass would see how it is read.
    """
    kind = type(saved.data)
    is_tensor = kind in PLAIN or (SAVED_TENSORS_ARE_READABLE and issubclass(kind, torch.Tensor))
    return is_tensor and saved.unpack_hook is None


def was_detached(saved: Any, read: torch.Tensor) -> bool:
    """Return whether the tensor that was saved has been detached in place since.

    For its own node torch does not check that when it is read, but without a node it does. An
    output of the node, which is kept as another tensor, can be read with the node only.
    """
    if read is not saved.data or not is_leaf(read):
        return False
    try:
        (unpack_saved or type(saved).unpack)(saved)
    except RuntimeError as error:
        return DETACHED_TEXT in str(error)
    return False


def stale_inputs_of_checkpoint(unpack: Any) -> list[Stale]:
    """Return the stale inputs of a non-reentrant checkpoint, which its unpack hook will read.

    They are in no node: torch/utils/checkpoint.py keeps them as ``frame.saved_args``.
    """
    code = getattr(unpack, "__code__", None)
    if code is None or code.co_filename != CHECKPOINT_FILE or "frame" not in code.co_freevars:
        return []
    frame = unpack.__closure__[code.co_freevars.index("frame")].cell_contents
    saver = getattr(getattr(frame, "input_saver", None), "grad_fn", None)
    if saver is not None:
        return _stale_inputs_of_saver(saver)
    stale = []
    for saved in getattr(frame, "saved_args", ()):
        data = saved.data if isinstance(saved, SavedTensor) else None
        if isinstance(data, Packed):
            if data.tensor is not None and (data.is_stale or data.is_detached):
                stale.append(Stale(data.tensor, data.version))
        elif isinstance(data, torch.Tensor) and saved.unpack_hook is None:
            stale += _stale_alone(saved, is_input=True)
    return stale


def _stale_inputs_of_saver(saver: Node) -> list[Stale]:
    """Return the same before torch 2.12, where a node that is in no graph saved the inputs."""
    inputs = [each for each in slots.saved(saver, "tensors") if each is not None]
    packs = [each.data for each in inputs if isinstance(each.data, Packed)]
    stale = [Stale(p.tensor, p.version) for p in packs if p.tensor is not None and p.is_stale]
    if any(type(each.data) not in PLAIN or each.unpack_hook is not None for each in inputs):
        return stale  # under hooks, or of a subclass, whose own code would see the unpacking
    try:
        slots.unpacked(saver, "saved_tensors")
    except RuntimeError as error:
        if (versions := slots.versions_in(error)) is not None:
            now, then = versions
            stale += [Stale(e.data, then) for e in inputs if version_of(e.data) == now][:1]
    return stale

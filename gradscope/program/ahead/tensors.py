"""Says what operators of torch give: where it leads, and its shape only if that is asked for."""

from __future__ import annotations

import functools
import operator
import types
import weakref
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module

from gradscope.code.bytecode import MISSING
from gradscope.program.ahead import values as v
from gradscope.program.ahead.machine import Machine, is_function
from gradscope.program.containers import class_name, class_namespace, is_a, is_exactly, module_of
from gradscope.program.tensors import PLAIN as PLAIN_TENSORS
from gradscope.program.tensors import requires_grad
from gradscope.torch_private import (
    OPERATOR_MODULES,
    VARIABLE_FUNCTIONS,
    DisableTorchDispatch,
    DisableTorchFunction,
    function_modes,
)

LEADS_NOWHERE: Final = v.words(
    "detach data argmax argmin argsort eq ne lt le gt ge equal allclose isclose isnan isinf "
    "isfinite isneginf isposinf nonzero count_nonzero sign bernoulli multinomial bucketize "
    "bool int long short byte char zeros_like ones_like empty_like full_like rand_like randn_like "
    "randint_like new_zeros new_ones new_empty new_full new_tensor tensor one_hot histc bincount "
    "logical_and logical_or logical_not logical_xor __and__ __or__ __xor__ and_ or_ xor unique "
    "searchsorted is_nonzero floor_divide randperm arange any all"
)
"""Operators whose result has no graph."""

VALUES: Final = v.words("item tolist numpy __float__ __int__ __index__ __bool__ __complex__")
SHAPES: Final = v.words(
    "size dim ndimension numel nelement element_size stride storage_offset is_contiguous "
    "is_floating_point is_complex get_device __len__"
)
ATTRIBUTES_OF_SHAPE: Final = v.words("shape ndim dtype layout itemsize nbytes")
SAME: Final = v.words(
    "cpu cuda contiguous to type double float half bfloat16 requires_grad_ share_memory_ "
    "pin_memory as_subclass rename refine_names retain_grad"
)
"""Methods that give the tensor itself, or a copy that leads where it leads."""
_FALSE: Final = v.words("is_cuda is_sparse is_quantized is_meta is_mps is_nested is_mkldnn is_xpu")
_PARTS: Final = v.words("T mT H mH real imag")
_QUIET: Final = v.words(
    "register_hook register_post_accumulate_grad_hook data_ptr __hash__ untyped_storage storage "
    "__repr__ __str__ __format__ __dir__ __deepcopy__ retain_grad __array__ record_stream"
)


def is_operator(what: Any) -> bool:
    """Return whether a C function is one of torch's operators."""
    if not is_exactly(what, types.BuiltinFunctionType, types.BuiltinMethodType):
        return False
    if type(what.__self__) is types.ModuleType:
        return what.__self__.__name__ in OPERATOR_MODULES
    return what is getattr(VARIABLE_FUNCTIONS, what.__name__, None)


def is_in_place(name: str) -> bool:
    """Return whether a method writes into its tensor: ``add_``, ``__iadd__``."""
    return name.endswith("_") and not name.endswith("__")


def operate(m: Machine, function: Any, given: v.Given, named: v.Named) -> Any:
    """Return the result of an operator: it leads where its arguments lead."""
    name = getattr(function, "__name__", "")
    override = _override(m, (*given, *named.values()))
    if override is not MISSING and not m.overrides:
        kind, method = override
        m.overrides = True  # it turns itself off for what it asks torch for
        try:
            return m.call(method, (kind, function, (), given, dict(named)), {})
        finally:
            m.overrides = False
    if name in ("allclose", "equal", "is_nonzero", "can_cast", "result_type", "is_tensor"):
        return v.Unknown(why=name)
    builds = m.grad and name not in LEADS_NOWHERE
    taints = m.held((given, named)) if builds else v.NO_TAINTS
    apart = builds and _leads_apart(m, given, named)
    wanted = bool(taints) or named.get("requires_grad") is True or (None if apart else False)
    result = v.FutureTensor(taints, _twin_of(m, function, given, named), wanted)
    result.apart = apart
    out = named.get("out")
    if v.is_tensor(out):
        write(m, out, taints)
        return out
    if given and v.is_tensor(given[0]) and name in ("getitem", "view", "select", "narrow"):
        result.base = given[0] if type(given[0]) is v.FutureTensor else None
    return result


def in_place(m: Machine, tensor: Any, given: v.Given, named: v.Named) -> Any:
    """Return a tensor that an operator wrote into: it leads where the arguments lead as well."""
    write(m, tensor, m.held((given, named)) if m.grad else v.NO_TAINTS)
    return tensor


def write(m: Machine, tensor: Any, taints: v.Taints, *, cut: bool = False) -> None:
    """Add what a tensor leads to, or replace that; so does what it is a view of."""
    if type(tensor) is v.FutureTensor:
        tensor.taints = taints if cut else tensor.taints | taints
        if taints:
            tensor.requires_grad = True
        if tensor.base is not None:
            write(m, tensor.base, taints)
        return
    before = v.NO_TAINTS if cut else m.taints(tensor)
    if not (taints or before or cut):
        return
    after = v.FutureTensor(before | taints, functools.cache(lambda: _meta(tensor)))
    m.written[id(tensor)] = tensor, after
    with DisableTorchFunction():
        base = tensor._base if tensor._is_view() else None
    if base is not None and taints:
        write(m, base, taints)


def _override(m: Machine, given: v.Given) -> Any:
    """Return the user's ``__torch_function__`` of an argument, and its class; else MISSING."""
    for each in given:
        if v.is_tensor(each):
            kind = v.kind_of(each)
            if any(kind is plain for plain in PLAIN_TENSORS):
                continue
            found = m.lookup(kind, "__torch_function__")
            inner = found.__func__ if type(found) is classmethod else None
            if type(inner) is types.FunctionType and not inner.__module__.startswith("torch."):
                return kind, inner
    return MISSING


def _leads_apart(m: Machine, *given: Any) -> bool:
    for each in given:
        if type(each) is v.Unknown or (v.is_tensor(each) and is_apart(m, each)):
            return True
        if is_exactly(each, tuple, dict) or is_a(each, list):
            inner = each.values() if is_a(each, dict) else each
            if _leads_apart(m, *inner):
                return True
    return False


def is_apart(m: Machine, tensor: Any) -> bool:
    """Return whether a tensor may need a gradient, and not for what its taints stand for alone."""
    if m.taints(tensor):
        return type(tensor) is v.FutureTensor and tensor.apart
    return _requires_grad(tensor) is not False


def _requires_grad(tensor: Any) -> bool | None:
    if type(tensor) is v.FutureTensor:
        return tensor.requires_grad
    return requires_grad(tensor)


# shapes


def _meta(tensor: Tensor) -> Any:
    """Return the shape of a live tensor on the meta device."""
    if not is_exactly(tensor, *PLAIN_TENSORS):
        return None
    with DisableTorchDispatch(), DisableTorchFunction():
        try:
            return torch.empty_strided(
                tuple(tensor.size()), tensor.stride(), dtype=tensor.dtype, device="meta"
            )
        except RuntimeError:
            return None


class _NoShape(Exception):  # noqa: N818 - no error
    """An argument whose shape is not known."""


def twin(tensor: Any) -> v.Twin:
    """Return the shape of a tensor, to be found when it is asked for."""
    return tensor.twin if type(tensor) is v.FutureTensor else functools.cache(lambda: _meta(tensor))


def _twin_of(m: Machine, function: Any, given: v.Given, named: v.Named) -> v.Twin:
    if function is None or function_modes():
        return v.NO_TWIN
    try:
        arguments = tuple(_shaped(m, each) for each in given)
        options = {
            name: _shaped(m, each) for name, each in named.items() if name not in _NO_OPTIONS
        }
    except _NoShape:
        return v.NO_TWIN
    makes = not any(map(_holds_twin, (*arguments, *options.values())))

    def make() -> Any:
        try:
            first = tuple(map(_got, arguments))
            if any(each is v.ANYTHING for each in first):
                return v.ANYTHING
            rest = {name: _got(each) for name, each in options.items()}
            if makes:
                rest["device"] = "meta"
            with DisableTorchDispatch(), DisableTorchFunction(), torch.no_grad():
                return function(*first, **rest)
        except Exception:  # whatever an operator raises on the meta device: the shape is not known
            return None

    return functools.cache(make)


_NO_OPTIONS: Final = ("out", "pin_memory", "generator", "device")


def _is_twin(value: Any) -> bool:
    return type(value) is type(v.NO_TWIN)


def _holds_twin(value: Any) -> bool:
    return _is_twin(value) or (is_exactly(value, tuple, list) and any(map(_holds_twin, value)))


def _shaped(m: Machine, value: Any) -> Any:
    if v.is_tensor(value):
        return twin(value)
    if v.is_plain(value) and not is_exactly(value, torch.device):
        return value
    if type(value) is tuple or is_a(value, list):
        found = tuple(_shaped(m, each) for each in m.overlay.view(value))
        return found if type(value) is tuple else [*found]
    raise _NoShape


def _got(value: Any) -> Any:
    if _is_twin(value):
        found = value()
        if found is None:
            raise _NoShape
        return found
    if type(value) is tuple:
        return tuple(map(_got, value))
    return [*map(_got, value)] if type(value) is list else value


def shape(tensor: Any) -> Any:
    """Return a tensor without memory of the same shape; None if unknown."""
    found = twin(tensor)()
    return found if is_a(found, Tensor) else None


def rows(tensor: Any) -> int | None:
    """Return how many rows a tensor has, or how many tensors a result; None if unknown."""
    found = twin(tensor)()
    if is_a(found, tuple, list):
        return len(found)
    return int(found.shape[0]) if is_a(found, Tensor) and found.dim() else None


def part(m: Machine, tensor: Any, at: int) -> Any:
    """Return a row of a tensor, or one of the tensors of a result."""
    whole = twin(tensor)

    def make() -> Any:
        found = whole()
        return found if found is None or found is v.ANYTHING else found[at]

    made = v.FutureTensor(m.taints(tensor), functools.cache(make), _requires_grad(tensor))
    made.base = tensor if type(tensor) is v.FutureTensor else None
    made.apart = is_apart(m, tensor)
    return made


# attributes and methods


def attribute(m: Machine, tensor: Any, name: str) -> Any:
    """Return an attribute of a tensor; MISSING where it has none."""
    own = m.held_fields(tensor)
    if name in own:
        return own[name]
    on_class = m.lookup(v.kind_of(tensor), name)
    if on_class is not m.lookup(Tensor, name) and on_class is not MISSING:
        return m.bind(on_class, tensor, name)
    if name in ("data", "grad"):
        made = v.FutureTensor(v.NO_TAINTS, twin(tensor), False)
        return made if name == "data" else v.Unknown(why="grad")
    if name in _PARTS:
        return operate(m, lambda tensor: getattr(tensor, name), (tensor,), {})
    if name in ATTRIBUTES_OF_SHAPE:
        found = shape(tensor)
        return v.Unknown(why="a shape") if found is None else getattr(found, name)
    if name == "device":
        return tensor.device if is_exactly(tensor, *PLAIN_TENSORS) else v.Unknown(why="a device")
    if name in _FALSE:
        return False
    if name == "requires_grad":
        return v.known(True if m.taints(tensor) else _requires_grad(tensor), "requires_grad")
    if name == "__class__":
        return v.kind_of(tensor)
    if type(on_class) is types.GetSetDescriptorType:
        return v.Unknown(why=name)
    if on_class is MISSING:
        is_known = type(tensor) is not v.FutureTensor or is_a(tensor.twin(), Tensor, type(None))
        return MISSING if is_known else v.FutureTensor(tensor.taints)
    if type(on_class) is types.FunctionType:
        return types.MethodType(on_class, tensor)
    return v.BuiltinMethod(tensor, name)


def set_attribute(m: Machine, tensor: Any, name: str, value: Any) -> None:
    """Store an attribute of a tensor."""
    if name == "data" and type(tensor) is v.FutureTensor:
        tensor.twin = twin(value)
    m.parted |= name == "grad" and value is None
    if name not in ("data", "grad", "requires_grad"):
        m.store(tensor, name, value)


def method(m: Machine, tensor: Any, name: str, given: v.Given, named: v.Named) -> Any:
    """Return what a method of a tensor gives."""
    if name in VALUES:
        return v.Unknown(why=f"{name}()")
    if name == "detach_":
        write(m, tensor, v.NO_TAINTS, cut=True)
        return tensor
    if name in SHAPES:
        found = shape(tensor)
        if found is None or not v.is_plain((given, tuple(named.values()))):
            return v.Unknown(why="a shape")
        return m.compute(getattr(found, name), *given, **named)
    if name == "__iter__":
        return m.call(iter, (tensor,), {})
    if name == "__getitem__":
        return operate(m, operator.getitem, (tensor, *given), {})
    if name == "__setitem__":
        return m.kinds.iteration.set_item(m, tensor, *given)
    if name in _QUIET:
        return v.Unknown(why=name)
    if name in SAME:
        return _same(m, tensor, name, given, named)
    function = m.lookup(Tensor, name)
    if function is MISSING:
        return m.unknown(f"tensor.{name}", tensor, *given, *named.values())
    if is_in_place(name):
        if name in ("zero_", "fill_", "normal_", "uniform_", "copy_") and not m.held(given):
            return tensor
        return in_place(m, tensor, given, named)
    return operate(m, function, (tensor, *given), named)


def _same(m: Machine, tensor: Any, name: str, given: v.Given, named: v.Named) -> Any:
    if name == "requires_grad_":
        wanted = given[0] if given else named.get("requires_grad", True)
        if type(tensor) is v.FutureTensor:
            tensor.requires_grad = True if tensor.taints else wanted is not False
        return tensor
    if name == "as_subclass":
        made = v.FutureTensor(m.taints(tensor), twin(tensor))
        if given and is_a(given[0], type):
            made.kind = given[0]
        return made
    kinds = (*given, *named.values())
    if any(is_exactly(each, torch.dtype) and not each.is_floating_point for each in kinds):
        function = getattr(Tensor, name)
        return v.FutureTensor(v.NO_TAINTS, _twin_of(m, function, (tensor, *given), named), False)
    return tensor


# modules


_WRAPPERS: Final = {"OptimizedModule": "_orig_mod", "DistributedDataParallel": "module"}
"""Modules of torch's that call another, by the name of their class; the attribute that it is."""


def call_module(m: Machine, module: Any, given: v.Given, named: v.Named) -> Any:
    """Call a module: its hooks, and its forward."""
    cls = v.kind_of(module)
    own = m.lookup(cls, "__call__")
    if own is not class_namespace(Module)["__call__"] and is_function(own):
        return m.call(own, (module, *given), named)
    if (inner := _WRAPPERS.get(class_name(cls))) is not None:
        return m.call(m.attribute(module, inner), given, named)
    for hook, with_kwargs in _hooks(m, module, "_forward_pre_hooks"):
        if with_kwargs:
            changed = m.call(hook, (module, given, v.OwnDict(named)), {})
            if type(changed) is tuple and len(changed) == 2:
                given, named = changed[0], m.kinds.iteration.as_dict(m, changed[1])
            continue
        changed = m.call(hook, (module, given), {})
        if changed is not None:
            given = changed if type(changed) is tuple else (changed,)
    if is_layer(m, module):
        result = layer(m, module, given, named)
    else:
        result = m.call(m.attribute(module, "forward"), given, named)
    for hook, with_kwargs in _hooks(m, module, "_forward_hooks"):
        more = (v.OwnDict(named),) if with_kwargs else ()
        changed = m.call(hook, (module, given, *more, result), {})
        result = result if changed is None else changed
    return result


def _hooks(m: Machine, module: Any, name: str) -> Iterator[tuple[Any, bool]]:
    """Yield the hooks of all modules and of this one, and whether they are given keywords."""
    every, names = vars(torch.nn.modules.module), (name, f"{name}_with_kwargs")
    of_all = [every.get(f"_global{each}") for each in names]
    for hooks, keys in (of_all, [m.find(module, each) for each in names]):
        asked = m.overlay.view(keys) if is_a(keys, dict) else ()
        for key, hook in [*m.overlay.view(hooks).items()] if is_a(hooks, dict) else ():
            yield hook, key in asked


def is_layer(m: Machine, module: Any) -> bool:
    """Return whether a module is one of torch's without hooks or children: a single operator."""
    if type(module) is v.Instance or not _is_of_torch(type(module)):
        return False
    if set(m.overlay.attributes(module)) - {"training"}:
        return False
    parts = [each for each in Module.modules(module) if each is not module]
    return not parts or (
        not any(map(_is_container, (module, *parts)))
        and all(
            _is_of_torch(type(each)) and not each._forward_hooks and not each._forward_pre_hooks
            for each in parts
        )
    )


def _is_of_torch(cls: type) -> bool:
    return module_of(cls).startswith(("torch.nn.modules.", "torch.ao."))


def _is_container(module: Any) -> bool:
    kinds = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Identity)
    return is_exactly(module, *kinds)


def layer(m: Machine, module: Any, given: v.Given, named: v.Named) -> Any:
    """Return what one of torch's own modules gives: it leads where arguments and weights lead."""
    if is_exactly(module, torch.nn.Identity):
        return given[0]
    weights = [*Module.parameters(module), *Module.buffers(module)]
    weights += [each for each in m.namespace(module).values() if v.is_tensor(each)]
    taints = m.held((given, named, tuple(weights))) if m.grad else v.NO_TAINTS
    wanted = (bool(taints) or any(map(requires_grad, weights)) or None) if m.grad else False
    if v.Instance in map(type, given):  # a PackedSequence: it gives what is no tensor
        return v.FutureTensor(taints, v.NO_TENSOR, wanted)
    run = None if m.namespace(module).get("_modules") else functools.partial(_known, module)
    return v.FutureTensor(taints, _twin_of(m, run, given, named), wanted)


# Shapes of arguments for which the result of one layer is kept; when there are more, all are
# forgotten. Sequences of ever new lengths would fill memory.
_MOST_SHAPES: Final = 100
_results: weakref.WeakKeyDictionary[Module, dict[Any, Any]] = weakref.WeakKeyDictionary()


def _known(module: Module, *given: Any, **named: Any) -> Any:
    """Return what a layer gives for arguments of these shapes, from its last run on such: a
    recurrent one takes a tenth of a second for that, and is met again at each look ahead.
    """
    own = [*Module.parameters(module), *Module.buffers(module), module.training]
    key = _key((*own, *given, *named.items()))
    known = _results.setdefault(module, {})
    if key not in known:
        if len(known) >= _MOST_SHAPES:
            known.clear()
        known[key] = None  # where it fails the shape is not known
        known[key] = _forward(module, *given, **named)
    return _alias(known[key])


def _key(value: Any) -> Any:
    if is_a(value, Tensor):
        return tuple(value.shape), value.dtype
    return tuple(map(_key, value)) if is_exactly(value, tuple, list) else value


def _alias(value: Any) -> Any:
    """Return what may be changed without changing the value."""
    if is_a(value, Tensor):
        return value.detach()
    return tuple(map(_alias, value)) if type(value) is tuple else value


def _forward(module: Module, *given: Any, **named: Any) -> Any:
    """Run a layer without memory: what it stores is stored in a copy."""
    other = object.__new__(type(module))
    space = object.__getattribute__(module, "__dict__")
    own = {name: _meta_of(each) for name, each in space.items()}
    if "_flat_weights" in own:
        own["_flat_weights"] = [_meta(each) for each in own["_flat_weights"]]
    object.__getattribute__(other, "__dict__").update(own)
    return type(module).forward(other, *given, **named)


def _meta_of(value: Any) -> Any:
    if is_a(value, Tensor):
        return _meta(value)
    if type(value) is dict and any(is_a(each, Tensor) for each in value.values()):
        return {name: None if each is None else _meta(each) for name, each in value.items()}
    return value

"""Says what functions do that are written in Python and not entered: torch's, and libraries'."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

import torch
import torch.utils.checkpoint
from torch.nn import Module

from gradscope.program.ahead import iteration, tensors
from gradscope.program.ahead import values as v
from gradscope.program.ahead.machine import MODULE_PARTS, Machine
from gradscope.program.ahead.models import argument, in_thread, model, rebuilt
from gradscope.program.ahead.values import Given, Named
from gradscope.program.containers import class_namespace, derives, is_a
from gradscope.torch_private import (
    ENTERED_FILES,
    FUNCTIONAL_MODULES,
    TENSOR_MODULE,
    bound_functions,
    set_grad_mode,
)


def _tensors(m: Machine, given: Any) -> list[Any]:
    return [given] if v.is_tensor(given) else iteration.drain(m, given)


def run_backward(m: Machine, roots: list[Any], inputs: Any = None) -> None:
    """Call the engine for these roots."""
    taints = m.held(roots)
    if taints and not m.within:
        each = None if inputs is None else _tensors(m, inputs)
        alone = not any(tensors.is_apart(m, root) for root in roots if v.is_tensor(root))
        sure = frozenset(taint for taint in taints if taint.sure)
        if sure and m.question.meets(sure, each):
            m.meet(sure, sure=True, alone=alone)
        if m.question.meets(taints, each) is not False:
            m.meet(taints, sure=False, alone=alone)


@model(torch.Tensor.backward)
def _backward(m: Machine, function: Any, given: Given, named: Named) -> None:
    run_backward(m, [given[0]], argument(given, named, 4, "inputs"))


@model(torch.autograd.backward)
def _backward_of_all(m: Machine, function: Any, given: Given, named: Named) -> None:
    roots = _tensors(m, argument(given, named, 0, "tensors"))
    run_backward(m, roots, argument(given, named, 5, "inputs"))


@model(torch.autograd.grad)
def _grad(m: Machine, function: Any, given: Given, named: Named) -> Any:
    roots = _tensors(m, argument(given, named, 0, "outputs"))
    each = _tensors(m, argument(given, named, 1, "inputs"))
    run_backward(m, roots, v.OwnList(each))
    creates = m.known_truth(argument(given, named, 4, "create_graph", False))
    taints = v.unsure(m.held(roots)) if creates else v.NO_TAINTS
    return tuple(v.FutureTensor(taints, tensors.twin(one), creates) for one in each)


# whether graphs are built


model(torch.is_grad_enabled)(lambda m, f, given, named: m.grad)


@model(set_grad_mode)
def _set_grad_enabled(m: Machine, function: Any, given: Given, named: Named) -> None:
    m.grad = m.truth(given[0])


model(
    *(torch.is_inference_mode_enabled, torch.overrides.has_torch_function),
    *(torch.is_autocast_enabled, torch.overrides.has_torch_function_unary),
    torch.overrides.has_torch_function_variadic,
)(lambda m, f, given, named: False)


def _entering(m: Machine, function: Any, given: Given, named: Named) -> None:
    """Enter ``inference_mode``, as ``no_grad``: what it builds leads nowhere."""
    given[0].fields["prev"], m.grad = m.grad, False


def _leaving(m: Machine, function: Any, given: Given, named: Named) -> None:
    m.grad = given[0].fields.get("prev", True)


model(torch.autocast.__enter__)(lambda m, f, given, named: given[0])
model(torch.autocast.__exit__)(lambda m, f, given, named: None)
model(torch.inference_mode.__enter__)(_entering)
model(torch.inference_mode.__exit__)(_leaving)


if bound_functions is not None:
    model(type(bound_functions).__getattr__)(
        lambda m, f, given, named: m.attribute(bound_functions.vf, given[1])
    )

# transforms of functions


@model(torch.func.functional_call)
def _called_with(m: Machine, function: Any, given: Given, named: Named) -> Any:
    names = enumerate(("module", "parameter_and_buffer_dicts", "args", "kwargs"))
    module, weights, inputs, keywords = (argument(given, named, *each) for each in names)
    each = inputs if type(inputs) is tuple else () if inputs is None else (inputs,)
    found = m.call(module, each, {} if keywords is None else iteration.as_dict(m, keywords))
    return rebuilt(m, found, m.held((found, weights)) if m.grad else v.NO_TAINTS)


def _mapped(m: Machine, function: Any, given: Given, named: Named) -> Any:
    """Call a function for each row of what it is given: what it sees has other shapes."""
    rows = rebuilt(m, tuple(given[1:]), None, shaped=False)
    return rebuilt(m, m.call(given[0], rows, named), None, shaped=False)


def _derived(m: Machine, function: Any, given: Given, named: Named) -> Any:
    """Call what ``torch.func`` makes of a function that gives its gradients, or more of them."""
    transform, inner, places, has_aux, *rest = given
    found = m.call(inner, tuple(rest), named)
    at = places if type(places) is tuple else (places,)
    if not all(type(each) is int and each < len(rest) for each in at):
        return m.unknown("gradients", *rest)
    taints = v.unsure(m.held((*rest, found))) if m.grad else v.NO_TAINTS
    is_shaped = transform in (torch.func.grad, torch.func.grad_and_value)
    grads = rebuilt(m, tuple(rest[each] for each in at), taints, shaped=is_shaped)
    grads = grads if type(places) is tuple else grads[0]
    if transform is torch.func.grad_and_value:
        return grads, found
    return (grads, found[1]) if has_aux and type(found) is tuple else grads


model(_mapped)(_mapped)
model(_derived)(_derived)
model(torch.func.vmap)(lambda m, f, given, named: functools.partial(_mapped, given[0]))


@model(*(getattr(torch.func, n) for n in ("grad", "grad_and_value", "hessian", "jacfwd", "jacrev")))
def _deriving(m: Machine, function: Any, given: Given, named: Named) -> Any:
    at = argument(given, named, 1, "argnums", 0)
    has_aux = m.known_truth(argument(given, named, 2, "has_aux", False))
    derived: Any = _derived
    return functools.partial(derived, function, given[0], at, has_aux)


# functions that are not entered, by the module that they are of

_OF_OPTIMIZER: Final = v.words(
    "step zero_grad add_param_group load_state_dict state_dict get_last_lr unscale_"
)
_OF_MODULE_QUIET: Final = v.words(
    "train eval zero_grad requires_grad_ to float cpu cuda double half apply share_memory"
)
_LISTING: Final = v.words(
    "parameters named_parameters modules named_modules children named_children buffers "
    "named_buffers"
)


def of_function(function: FunctionType) -> Callable[..., Any] | None:
    """Return what stands for a function written in Python that is not entered."""
    module = function.__module__
    if type(module) is not str:
        return None
    return _step if function.__name__ == "step" else _of_library(function, module)


def _of_library(function: FunctionType, module: str) -> Callable[..., Any] | None:
    if module.startswith("torch.") or module == "torch":
        return _of_torch(function, module)
    package = module.partition(".")[0]
    is_short = function.__name__.startswith("is")  # it asks something
    return _not_entered if package in _NOT_ENTERED and not is_short else None


_NOT_ENTERED: Final = v.words(
    "numpy scipy matplotlib tqdm logging warnings pickle json tempfile inspect "
    "traceback re argparse pathlib shutil subprocess datetime string textwrap ast dis IPython "
    "linecache tokenize typing abc posixpath copy threading queue selectors socket ssl "
    "tensorboard wandb rich pandas sklearn psutil yaml importlib ipykernel gradscope"
)


def _not_entered(m: Machine, function: FunctionType, given: Given, named: Named) -> Any:
    if function.__module__.startswith(("logging", "warnings", "tqdm", "gradscope.")):
        return v.Unknown(why=function.__name__)
    what = f"{function.__module__}.{function.__name__}"
    return m.unknown(f"a call of {what}", *given, *named.values())


def _of_torch(function: FunctionType, module: str) -> Callable[..., Any] | None:
    name = function.__name__
    if name in _FALSE:
        return lambda m, of, given, named: False
    if module.startswith("torch.distributed") and name in ("is_available", "is_initialized"):
        return lambda m, of, given, named: of()
    if module.startswith("torch.optim"):
        return _of_optimizer if name in _OF_OPTIMIZER else None
    if module.startswith("torch.distributions."):
        return _of_distribution
    if module.startswith("torch.distributed.fsdp") and name in ("_pre_forward", "_post_forward"):
        # A hook of fully_shard gives the arguments, or the result, as they are.
        return lambda m, of, given, named: given[2:4] if name == "_pre_forward" else given[-1]
    if module == "torch.autograd.function" and name == "apply":
        return _applied
    if module in FUNCTIONAL_MODULES:
        return _operator if name not in ("__torch_function__", "wrapped") else None
    if module == "torch.nn.modules.module":
        return _of_module if name in _OF_MODULE_QUIET | _LISTING | _ASKED_OF_MODULE else None
    if module.startswith(("torch.amp", "torch.cuda.amp")):
        return _of_scaler if name in ("scale", "step", "update", "unscale_", "minimize") else None
    if module.startswith(_ENTERED) or function.__code__.co_filename in ENTERED_FILES:
        return None
    if module.startswith(("torch.linalg", "torch.fft", "torch.func")):
        return _operator
    return _unknown_of_torch


_FALSE: Final = v.words(
    "is_compiling is_dynamo_compiling is_exporting is_current_stream_capturing is_scripting "
    "is_tracing"
)
_ENTERED: Final = (
    *("torch.nn.modules", "torch.nn.utils.parametri", "torch.autograd.grad_mode"),
    *("torch.utils.data", "torch.nn.utils.rnn", "torch.autograd.function", "torch.utils.hooks"),
    *(f"torch.nn.utils.{name}" for name in ("prune", "spectral_norm", "weight_norm")),
    "torch.nn.parallel.data_parallel",
)
_ASKED_OF_MODULE: Final = v.words("state_dict load_state_dict __repr__")


def _of_distribution(m: Machine, function: FunctionType, given: Given, named: Named) -> Any:
    """Ask a distribution for something: it leads to what the distribution was made of."""
    if function.__name__ in ("__init__", "set_default_validate_args"):
        return None
    drawn = function.__name__ == "sample" or not m.grad
    return v.FutureTensor(v.NO_TAINTS if drawn else m.held((given, named)))


def _applied(m: Machine, function: Any, given: Given, named: Named) -> Any:
    """Apply a custom ``autograd.Function``: what comes out leads to all that went in."""
    return v.FutureTensor(m.held((given[1:], named)) if m.grad else v.NO_TAINTS)


def _operator(m: Machine, function: FunctionType, given: Given, named: Named) -> Any:
    if function.__module__ == TENSOR_MODULE and given and v.is_tensor(given[0]):
        return tensors.method(m, given[0], function.__name__, given[1:], named)
    return tensors.operate(m, function, given, named)


def _unknown_of_torch(m: Machine, function: FunctionType, given: Given, named: Named) -> Any:
    inner = function.__dict__.get("_torchdynamo_orig_callable")
    if inner is not None:
        return m.call(inner, given, named)
    if function.__module__.startswith(("torch.nn.utils.clip_grad", "torch.utils.clip_grad")):
        return v.FutureTensor(requires_grad=False)
    return _not_entered(m, function, given, named)


def _step(m: Machine, function: FunctionType, given: Given, named: Named) -> Any:
    """Call what is named ``step``, and note it if that is an optimizer's."""
    is_optimizer = bool(given) and derives(v.kind_of(given[0]), torch.optim.Optimizer)
    if is_optimizer:  # which torch wraps at its first instance
        function = function.__dict__.get("__wrapped__", function)
        _run_hooks(m, given, named, "pre")
    model = _of_library(function, function.__module__)
    found = m.enter(function, given, named) if model is None else model(m, function, given, named)
    if is_optimizer:
        m.parted = True
        _run_hooks(m, given, named, "post")
    return found


def _run_hooks(m: Machine, given: Given, named: Named, when: str) -> None:
    """Run the hooks of an optimizer's step, and those of all optimizers' steps."""
    own = m.held_fields(given[0]).get(f"_optimizer_step_{when}_hooks")
    module = sys.modules[torch.optim.Optimizer.__module__]
    every = vars(module).get(f"_global_optimizer_{when}_hooks")
    for hooks in (own, every):
        for hook in [*m.overlay.view(hooks).values()] if is_a(hooks, dict) else ():
            m.call(hook, (given[0], given, v.OwnDict(named)), {})


def _of_optimizer(m: Machine, function: FunctionType, given: Given, named: Named) -> Any:
    m.parted |= function.__name__ == "zero_grad"
    if function.__name__ != "step":
        return v.Unknown(why=function.__name__)
    closure = argument(given, named, 1, "closure")
    if closure is None or not derives(v.kind_of(given[0]), torch.optim.Optimizer):
        return None
    times = 2 if derives(v.kind_of(given[0]), torch.optim.LBFGS) else 1
    found = [in_thread(m, closure, (), {}) for _ in range(times)]
    return found[0]


def _of_scaler(m: Machine, function: FunctionType, given: Given, named: Named) -> Any:
    if function.__name__ == "scale":
        return given[1]
    if function.__name__ == "step":
        return m.call(m.attribute(given[1], "step"), given[2:], named)
    return None


def _of_module(m: Machine, function: FunctionType, given: Given, named: Named) -> Any:
    module, name = given[0], function.__name__
    if name in _LISTING:
        if type(module) is v.Instance or not _lists_plainly(m, module):
            return m.enter(function, given, named)
        if not v.is_plain(given[1:]):
            return v.Unknown(why=name)
        return iteration.of_values(*function(module, *given[1:], **named))
    if name in ("train", "eval"):
        mode = name == "train" and argument(given, named, 1, "mode", True)
        for each in Module.modules(module) if is_a(module, Module) else ():
            m.store(each, "training", mode)
        return module
    m.parted |= name == "zero_grad"
    if name in _OF_MODULE_QUIET:
        return module
    return v.Unknown(v.unsure(m.held(given[1:])), name)


def _lists_plainly(m: Machine, module: Any) -> bool:
    for each in Module.modules(module):
        own, stored = m.namespace(each), m.overlay.attributes(each)
        for part in MODULE_PARTS:
            if part in stored or m.overlay.view(own.get(part)) is not own.get(part):
                return False
        for name in (*_LISTING, "_named_members"):
            if m.lookup(type(each), name) is not class_namespace(Module)[name]:
                return False
    return True

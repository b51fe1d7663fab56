"""The edits for one kind of cause alone, in the manner of ``primitives``: of checkpoints, hooks,
compiled code, the ``ctx`` of a Function.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.code import places
from gradscope.fixing import caching, calls, checkpoints, compiled, contexts, hooks
from gradscope.fixing.written import written
from gradscope.model import Edit, Site


@written
def not_reentrant(file: str) -> tuple[Edit, ...]:
    """Have the one checkpoint of a file run its backward without a backward call inside."""
    call = checkpoints.checkpoint_in(file)
    return calls.with_keyword(places.of_node(call, file), "use_reentrant", "False")


@written
def handed_to_checkpoint(file: str, names: Sequence[str]) -> tuple[Edit, ...]:
    """Hand the one checkpointed function of a file a variable as an argument."""
    return checkpoints.handed_over(file, names)


@written
def without_checkpoint(file: str) -> tuple[Edit, ...]:
    """Call the one checkpointed function of a file itself."""
    return checkpoints.without(file)


@written
def detach_in_hook(at: Site) -> tuple[Edit, ...]:
    """Have the hook that a place registers on a tensor take that tensor detached."""
    return hooks.detached_in(at)


@written
def save_for_backward(store: Site) -> tuple[Edit, ...]:
    """Write ``ctx.out = out`` as ``ctx.save_for_backward(out)``, and its reads in ``backward``."""
    return contexts.saved_for_backward(store)


@written
def cached_in_loop(at: Site) -> tuple[Edit, ...]:
    """Open the ``parametrize.cached()`` that is around a loop in each of its iterations."""
    return caching.opened_in_loop(at)


@written
def set_after_imports(file: str, name: str, value: str) -> tuple[Edit, ...]:
    """Give a setting of a module a value: ``torch._functorch.config.donated_buffer = False``."""
    return compiled.with_setting(file, name, value)


@written
def uncompiled(file: str) -> tuple[Edit, ...]:
    """Take ``torch.compile`` off the one function or module of a file that it compiles."""
    return compiled.uncompiled(file)

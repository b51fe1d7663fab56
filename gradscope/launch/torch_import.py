"""Calls a function once the program has imported torch, which gradscope never does first."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from gradscope.program.undisturbed import Uncollected

if sys.platform == "linux":  # for a watch, whose parts are imported from the program's path
    import resource  # noqa: F401


def when_torch_is_imported(then: Callable[[], None]) -> Callable[[], None]:
    """Call ``then`` once, now or at the end of torch's import; return what cancels it.

    To import torch before the program does would change the program: what it sets before its own
    import (``OMP_NUM_THREADS``, warning filters, ``sys.path``) would come too late.
    """
    if "torch" in sys.modules:
        then()
        return lambda: None
    finder = _TorchFinder(then)
    sys.meta_path.insert(0, finder)
    return finder.remove


class _TorchFinder(MetaPathFinder):
    """Finds torch as the other finders do, and makes its loader report the end of the import."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.then = then

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torch":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            # Set on the instance, as tools ask the loader's type for sources and resources.
            spec.loader.exec_module = partial(self._execute, spec.loader)  # type: ignore[method-assign]
        return spec

    def _execute(self, loader: Loader, module: ModuleType) -> None:
        del loader.exec_module
        loader.exec_module(module)
        self.remove()
        # As the import system is about to note itself. Until then another thread that asks for
        # torch, as C++ code of torch does, would wait for this one.
        if module.__spec__ is not None:
            module.__spec__._initializing = False  # type: ignore[attr-defined]
        with Uncollected():  # it would look through all of torch, several times
            self.then()

"""Calls a function at the moment the program has imported torch, so that gradscope never imports it earlier."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def when_torch_is_imported(then: Callable[[], None]) -> Callable[[], None]:
    """
    Call ``then`` once: now if torch is there already, else at the end of the import; return what undoes the waiting.

    To import torch before the program does would change the program: what it sets before its own import
    (``OMP_NUM_THREADS``, warning filters, ``sys.path``) would come too late.
    """
    if "torch" in sys.modules:
        then()
        return lambda: None
    finder = _TorchFinder(then)
    sys.meta_path.insert(0, finder)
    return finder.remove


class _TorchFinder(MetaPathFinder):
    """Finds torch where the other finders find it, and has its loader tell when it was executed."""

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
        found = (
            finder.find_spec(fullname, path, target)
            for finder in sys.meta_path
            if finder is not self
        )
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            # Set on the instance, which keeps the loader's type: tools ask it for sources and resources.
            spec.loader.exec_module = partial(self._execute, spec.loader)  # type: ignore[method-assign]
        return spec

    def _execute(self, loader: Loader, module: ModuleType) -> None:
        del loader.exec_module
        loader.exec_module(module)
        self.remove()
        self.then()

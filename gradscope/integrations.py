"""Callbacks for the trainers of Lightning and transformers, which are imported with their names."""

from __future__ import annotations

import sys
from contextlib import ExitStack, suppress
from functools import wraps
from importlib import import_module
from typing import Any

from gradscope.api.scope import Scope
from gradscope.api.watch import watch
from gradscope.errors import replace

_CALLBACKS = {
    "LightningCallback": ("Callback", ["lightning.pytorch", "pytorch_lightning"]),
    "TrainerCallback": ("TrainerCallback", ["transformers"]),
}
"""What each is in its framework, and where that is."""


class _Watching:
    """Watches each training to its end, also where it fails.

    It takes what :func:`gradscope.watch` takes; ``scope`` is what the last watch has seen.
    """

    scope: Scope | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__()
        self.watch, self.watching = watch(*args, **options), ExitStack()

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.watching.close()
        self.scope = self.watching.enter_context(self.watch)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.watching.close()

    on_fit_start, teardown = on_train_begin, on_train_end  # as Lightning calls them

    def on_exception(self, trainer: Any, module: Any, error: BaseException) -> None:
        self.watching.__exit__(type(error), error, error.__traceback__)


def _tell_of_failures(trainer: Any) -> None:
    """Have a Trainer of transformers end its watches where training fails: it tells no callback."""
    train = trainer.train

    @wraps(train)
    def watched(self: Any, *args: Any, **options: Any) -> Any:
        with ExitStack() as watches:
            for each in self.callback_handler.callbacks:
                if isinstance(each, _Watching):
                    watches.push(each.watching)
            return train(self, *args, **options)

    replace(trainer, "train", watched)


def __getattr__(name: str) -> Any:
    if name not in _CALLBACKS:
        raise AttributeError(f"{__name__} has {' and '.join(_CALLBACKS)}, and no {name}")
    base, modules = _CALLBACKS[name]
    for module in [each for each in modules if each in sys.modules] or modules:
        with suppress(ModuleNotFoundError):
            framework = import_module(module)
            bases = _Watching, getattr(framework, base)
            if name == "TrainerCallback":
                _tell_of_failures(framework.Trainer)
            made = type(name, bases, {"__module__": __name__, "__doc__": _Watching.__doc__})
            return globals().setdefault(name, made)
    needed = modules[0].partition(".")[0]
    raise ImportError(f"{name} needs {needed}, which is not here: `pip install {needed}`")

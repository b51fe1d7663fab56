"""A simulated accelerator: a device "sim" whose backward nodes autograd's engine runs in separate threads.

The kernels are the CPU's and run at once; dispatch, device guard, streams and the engine's threads are torch's own, so
that a program meets what it would on CUDA: hooks without a Python frame below them, sequence numbers of other threads,
operators that torch chooses off the CPU. Not simulated: kernels that run later, sparse tensors, ``torch.compile``.

A process registers it once, before its first backward call, as the engine starts its threads then: tests run programs in
separate processes (``running.py``).
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils.backend_registration import (
    generate_methods_for_privateuse1_backend,
    rename_privateuse1_backend,
)

SOURCE = Path(__file__).with_name("simulated.cpp")
_TORCH = Path(torch.__file__).parent


def missing() -> str | None:
    """Return what this machine lacks to build the device, None where nothing is missing."""
    if sys.platform != "linux":
        return "the simulated device is built on Linux only"
    if shutil.which("g++") is None:
        return "the simulated device needs g++"
    if not (_TORCH / "include/ATen/detail/PrivateUse1HooksInterface.h").exists():
        return "the simulated device needs the headers of torch"
    return None


@functools.cache
def library() -> Path:
    """Return the built library; the first process that asks builds it, once for a torch and a source."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "gradscope-tests")
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError:
        cache = Path(tempfile.gettempdir(), f"gradscope-tests-{os.getuid()}")
        cache.mkdir(exist_ok=True)
    # torch's folder counts: two installations of one version may be of different builds.
    key = hashlib.sha256(SOURCE.read_bytes() + f"{torch.__version__} {_TORCH}".encode()).hexdigest()
    built = cache / f"simulated-{torch.__version__}-{key[:12]}.so"
    with _locked(built.with_suffix(".lock")):
        if not built.exists():
            _build(built)
    return built


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    import fcntl

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(target: Path) -> None:
    unfinished = target.with_suffix(".part")
    include = _TORCH / "include"
    command: list[str | Path] = [
        *("g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-w"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        *(f"-I{include}", f"-I{include}/torch/csrc/api/include"),
        *(SOURCE, "-o", unfinished, f"-L{_TORCH}/lib", "-ltorch", "-ltorch_cpu", "-lc10"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the simulated device does not compile:\n{done.stderr[-4_000:]}")
    unfinished.rename(target)


def load(devices: int = 1) -> Any:
    """Register the device with torch, and return ``torch.sim``, which counts what makes the host wait."""
    if hasattr(torch, "sim"):
        return torch.sim
    functions = ctypes.CDLL(str(library()))
    for name in ("memory", "peak", "waits", "downloads"):
        getattr(functions, f"simulated_{name}").restype = ctypes.c_int64
    functions.simulated_begin(devices)
    rename_privateuse1_backend("sim")
    module = _module(functions, devices)
    torch._register_device_module("sim", module)
    generate_methods_for_privateuse1_backend(for_storage=True)
    # A thread of the engine that lets go of Python objects while Python ends aborts the process.
    atexit.register(time.sleep, 0.1)
    return module


def _module(functions: Any, devices: int) -> Any:
    """Return what torch finds as ``torch.sim``, in the manner of ``torch.cuda``."""
    module: Any = ModuleType("torch.sim")
    module.device_count = lambda: devices
    module.current_device = lambda: int(functions.simulated_current())
    module.set_device = lambda index: functions.simulated_set_current(
        torch.device("sim", index).index
    )
    module.memory_allocated = lambda index=0: int(functions.simulated_memory(index))
    module.max_memory_allocated = lambda index=0: int(functions.simulated_peak(index))
    module.waits = lambda: int(functions.simulated_waits())
    module.downloads = lambda: int(functions.simulated_downloads())
    functions.simulated_limit.argtypes = [ctypes.c_int64]
    module.limit_memory = functions.simulated_limit
    module.forbid_waiting = lambda is_on: functions.simulated_forbid(int(is_on))
    module.is_available = module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module._lazy_init = module.manual_seed = module.manual_seed_all = lambda *_: None
    module.get_rng_state = lambda *_: torch.get_rng_state()
    module.set_rng_state = lambda state, *_: torch.set_rng_state(state)
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    module.synchronize = lambda *_: None

    class Device:
        """Makes a device the current one for the length of a ``with``."""

        def __init__(self, index: int | str | torch.device) -> None:
            found = index if isinstance(index, int) else torch.device(index).index
            self.index = module.current_device() if found is None or found < 0 else found

        def __enter__(self) -> None:
            self.before = module.current_device()
            module.set_device(self.index)

        def __exit__(self, *_: object) -> None:
            module.set_device(self.before)

    module.device = Device
    return module


def make_on(device: str) -> None:
    """Have what torch makes without a device named be made on this one.

    ``torch.set_default_device`` does so through a mode, which every operator meets; most programs on an accelerator have
    none.
    """
    from torch.utils import _device

    made: dict[str, Any] = {}
    # The frame is one of torch's, as that of the mode is.
    exec(compile(_MAKES, _device.__file__, "exec"), made)
    for original in _device._device_constructors():
        if vars(torch).get(original.__name__) is original:
            made["on"](torch, original, device)


_MAKES = """
import functools

def on(owner, original, device):
    @functools.wraps(original)
    def make(*args, **kwargs):
        if kwargs.get("device") is None:
            kwargs["device"] = device
        return original(*args, **kwargs)

    setattr(owner, original.__name__, make)
"""

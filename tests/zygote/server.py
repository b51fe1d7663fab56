"""
The process that has imported torch and forks for each program, and its like with gradscope too.

``python server.py SOCKET ROOT`` serves ``SOCKET`` and, in a child, ``SOCKET.gradscope``. A fork goes
back to the level of this module, so that one frame only is below the program's, becomes what Python
would be for the command line, runs it with the functions that Python itself calls, and leaves the
interpreter at the end of this file as a program does.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib
import marshal
import os
import runpy
import select
import signal
import socket
import sys
from collections.abc import Iterable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import BuiltinImporter, ModuleSpec, SourceFileLoader
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

COMMON = ("torch", "torch._dynamo", "torch.utils.checkpoint", "torch.utils.data", "torch.func")
GRADSCOPE = ("gradscope.cli", "gradscope.api.watch", "gradscope.launch.trial")
STARTUP = ("PYTHON", "OMP_", "MKL_", "KMP_", "TORCH", "KINETO_", "LD_", "ATEN_", "CUDA_")
"""How variables begin that are read when Python or torch starts: they must be the server's."""
STARTED = dict(os.environ)
HANDLED = frozenset(
    {
        *("PYTHONPATH", "PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE"),
        *("TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR"),
    }
)
OPTIONAL = frozenset({"PYTHONHASHSEED", "KINETO_LOG_LEVEL"})


class Request(NamedTuple):
    """A command line and its surroundings; ``client`` is the executable that asked."""

    arguments: list[str]
    directory: str
    environment: dict[str, str]
    executable: str
    client: str
    streams: list[int]


def received(connection: socket.socket) -> Request | None:
    """Return what a client asks for; None if it was killed while it asked."""
    size, streams, _, _ = socket.recv_fds(connection, 8, 3)
    text = connection.recv(int.from_bytes(size, sys.byteorder), socket.MSG_WAITALL)
    try:
        arguments, directory, environment, executable, client = marshal.loads(text)
    except (EOFError, TypeError, ValueError):
        close(streams)
        return None
    return Request(arguments, directory, environment, executable, client, streams)


def fits(environment: dict[str, str]) -> bool:
    """Whether an interpreter with this environment would have started as this one did."""
    names = {name for name in {**environment, **STARTED} if name.startswith(STARTUP)} - HANDLED
    return all(
        (name in OPTIONAL and name not in environment) or environment.get(name) == STARTED.get(name)
        for name in names
    )


def next_request(listener: socket.socket) -> Request:
    """Serve until a fork is made, and return in the fork what it is to run."""
    running: dict[int, tuple[int, socket.socket]] = {}  # by process descriptor: number, client
    clients: dict[int, int] = {}  # process descriptors by client
    poll = select.poll()
    poll.register(0, select.POLLHUP)
    poll.register(listener, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == 0:
                leave(process for process, _ in running.values())
            elif fd == listener.fileno():
                connection, _ = listener.accept()
                request = received(connection)
                if request is None or not fits(request.environment):
                    connection.close()  # which tells it to run by itself
                    close(request.streams if request else ())
                    continue
                process = os.fork()
                if not process:
                    close([*running, *clients])
                    for _, client in running.values():
                        client.detach()
                    connection.close()
                    listener.close()
                    return request
                close(request.streams)
                watched = os.pidfd_open(process)
                running[watched] = process, connection
                clients[connection.fileno()] = watched
                poll.register(watched, select.POLLIN)
                poll.register(connection, select.POLLIN)
            elif fd in running:
                process, connection = running.pop(fd)
                status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
                answer(connection, status)
                clients.pop(connection.fileno())
                poll.unregister(connection)
                poll.unregister(fd)
                connection.close()
                os.close(fd)
            elif fd in clients:
                process, connection = running[clients[fd]]
                for number in connection.recv(16) or [signal.SIGKILL]:
                    os.kill(process, number)


def answer(connection: socket.socket, status: int) -> None:
    with contextlib.suppress(OSError):  # it was killed
        connection.send(status.to_bytes(4, sys.byteorder, signed=True))


def close(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def leave(processes: Iterable[int]) -> NoReturn:
    for process in processes:
        os.kill(process, signal.SIGKILL)
    os._exit(0)


def become(request: Request) -> ModuleType:
    """Give the interpreter the state in which it starts to run the command line."""
    for stream, fd in enumerate(request.streams):
        os.dup2(fd, stream)
    close(request.streams)
    os.chdir(request.directory)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.dont_write_bytecode = bool(request.environment.get("PYTHONDONTWRITEBYTECODE"))
    first, *arguments = request.arguments
    folder = os.path.dirname(os.path.realpath(first))
    if first in ("-m", "-c"):
        arguments = arguments[1:]
        folder = os.getcwd() if first == "-m" else ""
    extra = request.environment.get("PYTHONPATH", "")
    safe = bool(request.environment.get("PYTHONSAFEPATH"))
    sys.path[:1] = [os.path.abspath(one) for one in extra.split(os.pathsep) if one]
    sys.path[:] = dict.fromkeys(sys.path)
    sys.path[:0] = [folder] * (not safe)  # Python puts it there last, and leaves what is like it
    sys.argv = [first, *arguments]
    # Both start programs themselves.
    verifies = request.arguments[:3] == ["-m", "gradscope", "fix"]
    rehearses = request.environment.get("GRADSCOPE_NO_REHEARSAL") == ""
    sys.executable = request.client if verifies or rehearses else request.executable
    sys.orig_argv[:] = [request.executable, *request.arguments]
    main = ModuleType("__main__")
    main.__loader__ = BuiltinImporter
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.meta_path.insert(0, Unimported())
    return main


class Unimported(MetaPathFinder, Loader):
    """Takes torch out of ``sys.modules``, and has an import of it put it back."""

    def __init__(self) -> None:
        self.modules = {name: m for name, m in sys.modules.items() if name != "__main__"}
        for name in self.modules:
            if name.partition(".")[0] == "torch":
                del sys.modules[name]
        self.spec = self.modules["torch"].__spec__

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = ModuleSpec(name, self, is_package=True)
        spec.submodule_search_locations = list(self.modules[name].__path__)
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec
        everything = self.modules | sys.modules  # in the order in which they are taken down
        sys.modules.clear()
        sys.modules.update(everything)


class End:
    """
    Ends the process once the interpreter has taken down all that is the program's.

    What is left then, the modules imported before the fork, would take much longer than the rest.
    """

    def __init__(self) -> None:
        self.status = 0
        self.streams: list[Any] = [sys.__stdout__, sys.__stderr__]
        self.exit, self.kill, self.process = os._exit, os.kill, os.getpid
        self.signal, self.default = signal.signal, signal.SIG_DFL
        self.suppress = contextlib.suppress

    def __del__(self) -> None:
        for stream in self.streams:
            with self.suppress(Exception):  # closed by the program
                stream.flush()
        if self.status < 0:
            self.signal(-self.status, self.default)
            self.kill(self.process(), -self.status)
        self.exit(self.status)


def last_module(end: End) -> ModuleType:
    """Return a module that holds ``end``; the interpreter clears it after those that come later."""
    module = ModuleType("zygote_end")
    module.end = end  # type: ignore[attr-defined]
    runpy.zygote_end = module  # type: ignore[attr-defined] # else it is gone before they are
    sys.modules[module.__name__] = module
    return module


def run_script(path: str, main: ModuleType) -> None:
    """Run a file as ``PyRun_SimpleFile`` does."""
    absolute = os.path.join(os.getcwd(), path)
    main.__file__ = absolute
    main.__dict__["__cached__"] = None
    main.__loader__ = SourceFileLoader("__main__", absolute)
    with open(absolute, "rb") as file:
        content = file.read()
    try:
        exec(compile(content, absolute, "exec", dont_inherit=True), main.__dict__)
    finally:
        for stream in (sys.stderr, sys.stdout):
            with contextlib.suppress(Exception):
                stream.flush()


def status_of(error: BaseException) -> int:
    """Say of an exception what the interpreter says; return the exit status, or minus a signal."""
    entry = error.__traceback__
    while entry is not None and entry.tb_frame.f_code.co_filename == __file__:
        entry = entry.tb_next
    error.__traceback__ = entry
    if not isinstance(error, SystemExit):
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        sys.excepthook(type(error), error, error.__traceback__)
        return -signal.SIGINT if type(error) is KeyboardInterrupt else 1
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def prepare() -> socket.socket:
    """Import what is common; return what listens, of this process or of its child."""
    path, root = sys.argv[1:]
    for name in COMMON:
        importlib.import_module(name)
    if not os.fork():
        path += ".gradscope"
        sys.path.insert(1, root)
        for name in GRADSCOPE:
            importlib.import_module(name)
        sys.path.remove(root)
    gc.collect()
    gc.freeze()  # so that no collection in a fork writes to, and so copies, all memory
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(16)
    assert len(os.listdir("/proc/self/task")) == 1, "a fork has the thread only that makes it"
    os.write(1, b".")
    return listener


if __name__ == "__main__":
    request = next_request(prepare())
    end = End()
    last_module(end)
    main = become(request)
    exited = False
    try:
        match request.arguments:
            case ["-m", name, *_]:
                runpy._run_module_as_main(name)  # type: ignore[attr-defined]
            case ["-c", text, *_]:
                exec(compile(text + "\n", "<string>", "exec", dont_inherit=True), main.__dict__)
            case [path, *_]:
                run_script(path, main)
    except BaseException as error:
        exited = isinstance(error, SystemExit)
        end.status = status_of(error)
    if request.arguments[0] not in ("-m", "-c") and not exited:
        main.__dict__.pop("__file__", None)
        main.__dict__.pop("__cached__", None)
    del end, main, request  # the program's objects are the program's again

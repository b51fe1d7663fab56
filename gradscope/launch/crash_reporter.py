"""Starts a standby, a process that reports on the program if its process dies before it can.

A signal, the kernel short of memory, an abort or ``os._exit`` leave a process no time for words,
and the program would see a handler, thread or timer. So a second process waits for the end of the
program's: it is not a child of that, and has a session of its own.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import stat
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple, NoReturn, TypeAlias

with suppress(ImportError):  # not on Windows, which has no pidfd either
    import fcntl

_INPUT, _OUTPUT, _ERRORS = range(3)
_SHARED = struct.Struct("QQ")
"""What the two processes share: the number of the standby, and 1 once it is not needed."""
_IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
"""What a terminal or a scheduler sends to all processes of a job before it kills them."""
# Milliseconds between two checks which files the program has closed: the reader of a pipe waits
# this long for its end.
_LOOK_EVERY = 1000
# Linux, uapi/linux/pidfd.h: PIDFD_GET_INFO, struct pidfd_info, and the flag of its exit code.
_GET_INFO = 0xC040FF0B
_INFO = struct.Struct("QQ11Ii")
_INFO_OF_EXIT = 8
_STARTED = 19  # starttime in /proc/PID/stat, counted from the state, which follows the name

Report: TypeAlias = Callable[[int | None], None]
"""Is called with the exit status of a process, if it is known."""


def is_possible() -> bool:
    """Return whether there can be a standby of this process.

    There is none for process 1: an orphan is a child of it, and ends when it does.
    """
    return hasattr(os, "pidfd_open") and os.getpid() != 1


@contextmanager
def standing_by(report: Report, keep: Iterable[int]) -> Iterator[None]:
    """Have ``report`` called in another process if this one dies in the block.

    It is given the exit status, negative for a signal, if the system tells. Of the open
    files, that process has those of ``keep`` only. Where there can be none, this does nothing.
    """
    standby = None
    with suppress(OSError, ValueError):
        standby = _begun(report, keep)
    process = os.getpid()
    try:
        yield
    finally:
        if standby is not None and os.getpid() == process:
            standby.dismiss()


class _Standby(NamedTuple):
    shared: mmap.mmap
    process: int
    started: str

    def dismiss(self) -> None:
        """End it, and wait until it has gone; if it cannot be ended, it goes with this process."""
        _SHARED.pack_into(self.shared, 0, self.process, 1)
        with suppress(OSError):
            file = os.pidfd_open(self.process)
            try:
                # By its start it is told from another of the same number.
                if _facts(self.process)[_STARTED] == self.started:
                    signal.pidfd_send_signal(file, signal.SIGKILL)
                    _poller(file).poll(_LOOK_EVERY)
            finally:
                os.close(file)


def _begun(report: Report, keep: Iterable[int]) -> _Standby | None:
    """Start the process; return None where the program would see it.

    The program is nobody's parent afterwards, and its account of children is empty: the process in
    between, which only starts the standby, leaves while SIGCHLD is ignored.
    """
    if not is_possible() or threading.active_count() > 1:
        return None
    handler = signal.getsignal(signal.SIGCHLD)
    if handler is None or threading.current_thread() is not threading.main_thread():
        return None
    shared = mmap.mmap(-1, _SHARED.size)
    program = os.getpid()
    watched = os.pidfd_open(program)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        between = os.fork()
        if between == 0:
            _fork_standby(shared, partial(_stand_by, shared, program, watched, report, keep))
        with suppress(ChildProcessError):
            os.waitpid(between, 0)
        process = _SHARED.unpack_from(shared)[0]
        if not process or _is_adopted(process):
            return None
    finally:
        signal.signal(signal.SIGCHLD, handler)
        os.close(watched)
    started = ""
    with suppress(OSError):
        started = _facts(process)[_STARTED]
    return _Standby(shared, process, started)


def _is_adopted(process: int) -> bool:
    """End an orphan that is our child all the same: the program's process adopts them."""
    with suppress(ChildProcessError):
        os.waitpid(process, os.WNOHANG)
        os.kill(process, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(process, 0)
        return True
    return False


def _fork_standby(shared: mmap.mmap, stand_by: Callable[[], None]) -> NoReturn:
    try:
        process = os.fork()
        if process:
            _SHARED.pack_into(shared, 0, process, 0)
        else:
            stand_by()
    finally:
        os._exit(0)


def _stand_by(
    shared: mmap.mmap, program: int, watched: int, report: Report, keep: Iterable[int]
) -> None:
    """Wait for the end of the program's process; report, unless it has done so itself."""
    os.setsid()
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    kept = {watched, *keep}
    _close_all_but(kept)
    kept.remove(watched)
    ended = _poller(watched)
    while not ended.poll(_LOOK_EVERY if kept and any(map(_has_a_reader, kept)) else None):
        # One who reads to the end of what the program has closed must not wait for us.
        held = _files_of(program)
        for file in filter(_has_a_reader, [*kept]):
            if os.readlink(f"/proc/self/fd/{file}") not in held:
                _silence(file)
                kept.remove(file)
    if not _SHARED.unpack_from(shared)[1]:
        report(_status(program, watched))


def _close_all_but(kept: set[int]) -> None:
    for file in map(int, os.listdir("/proc/self/fd")):
        if file not in kept and file > _ERRORS:
            with suppress(OSError):  # what lists the folder is closed by now
                os.close(file)
    for file in {_INPUT, _OUTPUT, _ERRORS} - kept:
        _silence(file)


def _silence(file: int) -> None:
    """Have a file lead nowhere, which is told from the program's own by not being inheritable."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != file:
        os.dup2(nowhere, file, inheritable=False)
        os.close(nowhere)


def _has_a_reader(file: int) -> bool:
    """Return whether somebody may wait for the end of what is written: of a pipe, a terminal."""
    mode = os.fstat(file).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(file)


def _files_of(process: int) -> set[str]:
    folder = f"/proc/{process}/fd"
    found = set()
    for file in os.listdir(folder):
        with suppress(FileNotFoundError):
            found.add(os.readlink(f"{folder}/{file}"))
    return found


def _poller(file: int) -> select.poll:
    poller = select.poll()
    poller.register(file, select.POLLIN)
    return poller


def _facts(process: int) -> list[str]:
    """Return what the system says of a process after its name, which may have any letter."""
    with open(f"/proc/{process}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].decode().split()


def _status(process: int, file: int) -> int | None:
    """Return the exit status of a process that has ended.

    Any Linux tells it before the parent has asked for it; a newer one also afterwards.
    """
    with suppress(OSError, ValueError):
        facts = _facts(process)
        if facts[0] == "Z":
            return os.waitstatus_to_exitcode(int(facts[49]))
    with suppress(OSError, ValueError):
        info = bytearray(_INFO.pack(_INFO_OF_EXIT, *[0] * 13))
        fcntl.ioctl(file, _GET_INFO, info)
        mask, *_, status = _INFO.unpack(info)
        if mask & _INFO_OF_EXIT:
            return os.waitstatus_to_exitcode(status)
    return None

"""Starts worker processes fast: one clean process imports torch once, then forks each worker.

Forking this process itself would be unsafe once torch has threads, and starting each worker from nothing takes seconds
and 150 MB of its own. `multiprocessing` has a fork server too, but every process of it runs the user's script again.
"""

import contextlib
import gc
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

_BOOT = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM):  # they are for the parent, which then ends its workers
    signal.signal(number, signal.SIG_IGN)
parent = int(sys.argv[2])
def look(*_):  # importing takes seconds, on a busy machine a minute: nobody waits for it whose parent is gone
    if os.getppid() != parent:
        os._exit(0)
signal.signal(signal.SIGALRM, look)
signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
sys.path[:] = sys.argv[3:]
from propfair.engines.processes.launcher import fork_on_request
fork_on_request(int(sys.argv[1]))
"""
_FORK, _END, _END_AND_TELL = b"F", b"E", b"T"


class Launcher:
    """The launcher as this process sees it. It ends with this process, and the workers end with it."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._control, theirs = socket.socketpair()
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(theirs.fileno()), str(self._owner), *sys.path],
                stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
                env=_environment(),
            )  # fmt: skip
        weakref.finalize(self, _close, process, self._control)

    def launch(self, fds: list[int]) -> "WorkerProcess":
        """A worker that serves `connection` and gets copies of `fds`. Does not wait for it."""
        number, (ours, theirs) = next(self._numbers), socket.socketpair()
        with theirs, self._lock:
            socket.send_fds(self._control, [_FORK + number.to_bytes(8)], [theirs.fileno(), *fds])
        return WorkerProcess(self, number, Connection(ours.detach()))

    def end(self, number: int, tell: bool) -> int | None:
        """Kill a worker, if it still runs; its exit code (negative for a signal) if `tell` is set and anyone knows."""
        with contextlib.suppress(ConnectionError), self._lock:
            self._control.sendall((_END_AND_TELL if tell else _END) + number.to_bytes(8))
            answer = self._control.recv(8, socket.MSG_WAITALL) if tell else b""
            return os.waitstatus_to_exitcode(int.from_bytes(answer)) if answer else None
        return None

    @property
    def alive(self) -> bool:
        """False in a fork of the process that made the launcher, and when it is gone."""
        if os.getpid() != self._owner:
            return False
        with self._lock:
            try:
                return self._control.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) != b""
            except BlockingIOError:
                return True
            except OSError:
                return False


@dataclass(eq=False)
class WorkerProcess:
    """A worker, seen from the process that asked for it."""

    launcher: Launcher
    number: int  # the launcher's name for it
    connection: Connection
    pid: int | None = None  # the first thing that the worker sends
    tasks: list[int] = field(default_factory=list)  # numbers of those under way, oldest first

    def end(self) -> int | None:
        """Kill it; the exit code, if it is known. Waits until it is gone, unless it has only just been asked for."""
        self.connection.close()
        return self.launcher.end(self.number, tell=self.pid is not None) if self.launcher.alive else None


_current: Launcher | None = None


def current() -> Launcher:
    """The launcher of this process: started at the first call, and again should it be gone."""
    global _current
    if _current is None or not _current.alive:
        _current = Launcher()
    return _current


def fork_on_request(control_fd: int) -> None:
    """The launcher's own program."""
    from propfair.engines.processes.worker import serve

    signal.setitimer(signal.ITIMER_REAL, 0)  # from here on the end of the parent is read from the socket
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    gc.freeze()  # else the first collection in each worker would copy every page
    pids: dict[int, int] = {}
    with socket.socket(fileno=control_fd) as control:
        while True:
            request, fds, _, _ = socket.recv_fds(control, 9, 8)
            kind, number = request[:1], int.from_bytes(request[1:])
            if kind == _FORK:
                pids[number] = os.fork()
                if pids[number] == 0:
                    try:
                        control.close()
                        serve(Connection(fds[0]), fds[1:])
                    finally:
                        os._exit(0)
                for fd in fds:
                    os.close(fd)
            elif kind in (_END, _END_AND_TELL):
                os.kill(pids[number], signal.SIGKILL)  # it is at least a zombie: nobody else has waited for it
                _, status = os.waitpid(pids.pop(number), 0)
                if kind == _END_AND_TELL:
                    control.sendall(status.to_bytes(8))
            else:
                return


def _environment() -> dict[str, str]:
    """One thread; and large pages, where the system leaves the choice to programs."""
    one_thread = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if "glibc.malloc.hugetlb" not in tunables:
        tunables = ":".join(filter(None, [tunables, "glibc.malloc.hugetlb=1"]))
    return {**os.environ, **one_thread, "GLIBC_TUNABLES": tunables}


def _close(process: subprocess.Popen[bytes], control: socket.socket) -> None:
    control.close()
    process.wait()

"""A Ray to work with: one that runs already, or one that is started here for the time of a run, for nobody else."""

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from types import ModuleType

from propfair.engines.ray.watchdog import watched
from propfair.errors import ConfigError, MissingExtraError

OLDEST = (2, 40)
_HAS_CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


def import_ray() -> ModuleType:
    """Ray, in a version that will do."""
    try:
        import ray
    except ImportError:
        raise MissingExtraError("the Ray engine", "ray") from None
    found = tuple(int(number) for number in ray.__version__.split(".")[:2])
    if found < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ConfigError(
            f"Ray must be at least {oldest}; found {ray.__version__}. Run: pip install -U 'propfair[ray]'"
        )
    module: ModuleType = ray
    return module


@contextlib.contextmanager
def connected(address: str, num_cpus: int | None) -> Iterator[ModuleType]:
    """Ray, joined at `address`, or started here and stopped at the end. One that this process has joined is used."""
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    with _own_signals(), contextlib.nullcontext() if address else watched():
        with _sigterm_ends_at_once():
            _join(ray, address, num_cpus)
        try:
            yield ray
        finally:
            ray.shutdown()


def _join(ray: ModuleType, address: str, num_cpus: int | None) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    asked = signal.getsignal(signal.SIGTERM)
    try:
        if address:
            _knock(address)
            ray.init(address=address, **quiet)
        else:
            with _on_loopback(ray):
                ray.init(address="local", num_cpus=num_cpus, include_dashboard=False, **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        if address:
            way_out = "Start one with `ray start --head`, or leave address empty to start one for this run."
            raise ConfigError(f"no Ray cluster at address={address!r}: {reason}. {way_out}") from None
        raise ConfigError(f"Ray could not be started on this machine: {reason}") from None
    if callable(asked) and _in_main_thread():
        signal.signal(signal.SIGTERM, asked)  # Ray would exit at once where a run wants to save its work first


@contextlib.contextmanager
def _on_loopback(ray: ModuleType) -> Iterator[None]:
    """A Ray that is started inside listens on the loopback interface alone: it asks nobody who they are.

    Ray does so by itself on systems where it has no clusters, and has a variable that says whether this is one.
    """
    constants = ray._private.ray_constants
    before, said = constants.ENABLE_RAY_CLUSTER, os.environ.get(_HAS_CLUSTERS)
    constants.ENABLE_RAY_CLUSTER = False  # for this process, which has read the variable already
    os.environ[_HAS_CLUSTERS] = "0"  # for those that it starts
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before
        os.environ.pop(_HAS_CLUSTERS)
        if said is not None:
            os.environ[_HAS_CLUSTERS] = said


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Ray handles SIGTERM by itself, and still does when it is gone: put back what was there before."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if _in_main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


@contextlib.contextmanager
def _sigterm_ends_at_once() -> Iterator[None]:
    """While Ray starts: its own handler would unwind a Ray that is half there, which hangs for a minute and aborts.

    The processes that Ray has started so far end with this one.
    """
    if not _in_main_thread():
        yield
        return
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        watcher = threading.Thread(target=_exit_on_sigterm, args=(ours,), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            theirs.shutdown(socket.SHUT_WR)
            watcher.join()


def _exit_on_sigterm(signals: socket.socket) -> None:
    while numbers := signals.recv(64):
        if signal.SIGTERM in numbers:
            os._exit(128 + signal.SIGTERM)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _knock(address: str) -> None:
    """Raise an error at once if nothing listens at the address; Ray itself would try again for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError("it must be 'auto' or 'host:port', on the network of the cluster")
    socket.create_connection((host, int(port)), timeout=5).close()

"""Ctrl-C and SIGTERM as a polite request: the round under way is finished first."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType


@dataclass
class StopRequest:
    """Whether somebody asked to stop, and how."""

    signal: str = ""  # "SIGINT" or "SIGTERM"; empty: nobody did

    def __bool__(self) -> bool:
        return bool(self.signal)


_of_main_thread: StopRequest | None = None


@contextlib.contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """The first Ctrl-C or SIGTERM sets the request; the second raises KeyboardInterrupt at once.

    Signals reach only the main thread. In other threads the request is the one that the main thread waits for now, if
    it does: several runs that take turns are all asked at once.
    """
    global _of_main_thread
    if threading.current_thread() is not threading.main_thread():
        yield StopRequest() if _of_main_thread is None else _of_main_thread
        return
    request, outer = StopRequest(), _of_main_thread

    def handle(number: int, _: FrameType | None) -> None:
        if request:
            raise KeyboardInterrupt
        request.signal = signal.Signals(number).name
        # Not print: a handler may run in the middle of one.
        os.write(2, b"\nstopping after this round; once more stops at once\n")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    _of_main_thread = request
    try:
        yield request
    finally:
        _of_main_thread = outer
        for number, previous in before.items():
            signal.signal(number, signal.SIG_DFL if previous is None else previous)

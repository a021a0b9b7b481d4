"""Programs that take turns: one runs at a time, until it asks for something; requests are answered many at once.

While one waits for the disk, another runs: thousands of files are brought there by few, longer waits.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from propfair.files import while_waiting

_LONGEST_WAIT_SECONDS = 0.1


def wait_for(semaphore: threading.Semaphore) -> None:
    """Acquire it, and handle signals on the way.

    A signal that reaches the main thread just before it blocks does not wake it: its handler would run only when the
    semaphore is released, which may be a whole round later. So the thread wakes by itself now and then.
    """
    while not semaphore.acquire(timeout=_LONGEST_WAIT_SECONDS):
        pass


class Program(threading.Thread):
    """A program in a thread of its own. It runs only while nobody else does.

    Attributes:
        request: what it waits for; None while it runs, and once it has ended.
        result: what its function returned.
        error: what it raised instead, whatever that is.
        waited: seconds in which others ran.
    """

    def __init__(self, function: Callable[["Program"], Any], turns: "Turns") -> None:
        super().__init__(daemon=True)
        self._function, self._turns = function, turns
        self.go = threading.Semaphore(0)
        self._is_next = False
        self.request: Any = None
        self.answer: Any = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.waited = 0.0

    def ask(self, request: Any) -> Any:
        """Called by the program: wait until the request is answered. An answer that is an exception is raised."""
        if self._turns.given_up:  # nobody would answer
            raise KeyboardInterrupt
        self.request = request
        with self.aside():
            self._turns.back.release()
            self.go.acquire()
        self.request, answer = None, self.answer
        if self._turns.given_up:
            raise KeyboardInterrupt
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def run(self) -> None:
        self.go.acquire()
        while_waiting.set(self.aside)
        with self._turns.turn:
            try:
                if not (self._turns.given_up or self._turns.interrupted):
                    self.result = self._function(self)
            except BaseException as error:  # told to whoever waits for all of them
                self.error = error
                self._turns.interrupted |= isinstance(error, KeyboardInterrupt)
        self._pass_on()
        self._turns.back.release()

    def let(self) -> None:
        """Called by others: it may run until it asks for something, or ends. Returns when it first waits."""
        self._is_next = True
        self.go.release()
        wait_for(self._turns.passed)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Called by the program: let others run while it waits."""
        began = time.monotonic()
        self._turns.turn.release()
        self._pass_on()
        try:
            yield
        finally:
            self._turns.turn.acquire()
            self.waited += time.monotonic() - began

    def _pass_on(self) -> None:
        if self._is_next:
            self._is_next = False
            self._turns.passed.release()


@dataclass
class Turns:
    """Runs programs by turns.

    Args:
        serve: answers requests that several programs wait with, in their order; an exception is an answer too.
        urgent: tells requests that are served before the others, so that programs wait for each other at those.

    Attributes:
        turn: held by the program that runs.
        passed: released by a program that first waits, so that all begin in their order.
        back: released by a program that waits for an answer or has ended.
        given_up: programs are to end.
        interrupted: no further program is to begin.
    """

    serve: Callable[[Sequence[Any]], Sequence[Any]]
    urgent: Callable[[Any], bool]
    turn: threading.Lock = field(default_factory=threading.Lock)
    passed: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    back: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    given_up: bool = False
    interrupted: bool = False

    def run(self, functions: Sequence[Callable[[Program], Any]]) -> list[Program]:
        """All programs to their ends. One that fails ends alone.

        After one that is interrupted no other is begun; those that were come to their own ends, and the interrupt is
        raised then. An interrupt of this function itself interrupts every program at its next request.
        """
        programs = [Program(function, self) for function in functions]
        try:
            for program in programs:
                program.start()
            self._let(programs)
            while waiting := [program for program in programs if program.request is not None]:
                first = [program for program in waiting if self.urgent(program.request)] or waiting
                for program, answer in zip(first, self.serve([one.request for one in first]), strict=True):
                    program.answer = answer
                self._let(first)
        finally:
            self.given_up = True
            for program in programs:
                program.go.release()
            for program in programs:
                if program.ident is not None:
                    program.join()
        for program in programs:
            if isinstance(program.error, KeyboardInterrupt):
                raise KeyboardInterrupt from program.error
        return programs

    def _let(self, programs: Sequence[Program]) -> None:
        """Let them run until each asks for something, or has ended."""
        for program in programs:
            program.let()
        for _ in programs:
            wait_for(self.back)

"""Ends what is left of a Ray that was started for a run, when the run itself was killed.

Most processes of Ray end with the one that started them, but its agents go on, and listen, for a minute. This file is
run as a program of its own, which needs nothing but Python: it waits until its input ends, which happens when the
process that holds the other end is gone, and then ends all processes with open files of that Ray. Linux alone has the
list of these files; elsewhere Ray does it by itself.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_DONE = b"done"
_LOOKS = 5  # one after the other: a process may start another one while it is ended
_PAUSE = 0.3  # seconds between them


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """What Ray starts inside does not outlive this process by more than a few seconds, however it ends."""
    if not sys.platform.startswith("linux"):
        yield
        return
    command = [sys.executable, "-I", str(Path(__file__).resolve()), str(os.getpid())]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True
    ) as watchdog:  # a Ctrl-C in the terminal is not for it
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # it may have been ended
                watchdog.communicate(_DONE)


def processes_of(owner: int) -> list[int]:
    """The processes with open files of the Ray that the process `owner` has started, without `owner` itself."""
    session = re.compile(rf"/session_[^/]*_{owner}(/|$)")  # how Ray calls its folder
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it is gone, or another user's
            if any(session.search(str(file.readlink())) for file in (process / "fd").iterdir()):
                found.append(int(process.name))
    return [process for process in found if process != owner]


def main() -> None:
    """Wait for the end of the owner, and then for the end of its Ray."""
    if sys.stdin.buffer.read() == _DONE:
        return
    for _ in range(_LOOKS):
        for process in processes_of(int(sys.argv[1])):
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(_PAUSE)


if __name__ == "__main__":
    main()

"""A server whose SuperLink is gone: it ends within seconds, so that the next one finds the run folder free.

Flower starts a ServerApp with the process id of whoever started it (`--parent-pid`), and has it end with that process.
But the app sees the signal only between two attempts to reach the SuperLink, which may be a minute later, and never if
the dead SuperLink was not waited for by the process that had started it. So we look for ourselves.
"""

import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from propfair.flower.events import log

POLL_SECONDS = 0.5
GRACE_SECONDS = 5.0  # for Flower to end the app in its own way, which tells a SuperLink that is still there


def end_with_flower() -> None:
    """End this process, from a thread beside it, once the processes of Flower that it belongs to are gone.

    Nothing happens in a process that Flower has not started with `--parent-pid`: there is nobody to outlive. Ending is
    as abrupt as a kill, which a run folder is made for: every file in it is replaced whole, and the system frees it.
    """
    above = [] if sys.platform == "win32" else _above(sys.argv)
    if above:
        threading.Thread(target=_end_after, args=(above,), name="propfair-orphan", daemon=True).start()


def _end_after(above: Sequence[int]) -> None:
    while all(map(_is_alive, above)):
        time.sleep(POLL_SECONDS)
    log.error("The SuperLink of this server is gone: it ends. Start it again with the same `out` to go on.")
    time.sleep(GRACE_SECONDS)
    os._exit(1)


def _above(command: Sequence[str]) -> list[int]:
    """The process that has started this one, and the one that has started that: SuperExec and SuperLink."""
    found: list[int] = []
    while "--parent-pid" in command[:-1]:
        parent = int(command[command.index("--parent-pid") + 1])
        if parent in found:
            break
        found.append(parent)
        try:
            command = Path(f"/proc/{parent}/cmdline").read_text(errors="replace").split("\0")
        except OSError:  # gone, or a system without /proc
            break
    return found


def _is_alive(process: int) -> bool:
    """Whether it runs: one that is dead and was not waited for does not."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # someone else's
        return True
    try:
        state = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:  # it has just ended, or there is no /proc: the next look tells
        return True
    return state not in ("Z", "X")

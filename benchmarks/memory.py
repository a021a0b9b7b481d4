"""Peak memory of a family of processes: proportional set size, so that shared pages count once."""

import os
import signal
import threading
import time
from pathlib import Path

MARK = "PROPFAIR_BENCHMARK"  # an environment variable that all processes of a contestant inherit


def members(mark: str) -> list[int]:
    """The processes whose environment has the mark, orphans too."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:  # gone, or not ours
            continue
        if wanted in environment.split(b"\0"):
            found.append(int(folder.name))
    return found


def pss(pid: int) -> int:
    """Bytes; 0 for a process that is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


class Peak(threading.Thread):
    """Samples the memory of all marked processes until it is stopped."""

    def __init__(self, mark: str, every: float = 0.05) -> None:
        super().__init__(daemon=True)
        self._mark, self._every = mark, every
        self._over = threading.Event()
        self.bytes = 0

    def run(self) -> None:
        """Look for new processes now and then, and at their memory often."""
        pids: list[int] = []
        looked = 0.0
        while not self._over.is_set():
            if time.monotonic() - looked > 0.25:
                pids, looked = members(self._mark), time.monotonic()
            self.bytes = max(self.bytes, sum(map(pss, pids)))
            self._over.wait(self._every)

    def stop(self) -> int:
        """The peak."""
        self._over.set()
        self.join()
        return self.bytes


def signal_family(mark: str, number: signal.Signals) -> None:
    """Send a signal to every process of a contestant."""
    for pid in members(mark):
        if pid != os.getpid():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

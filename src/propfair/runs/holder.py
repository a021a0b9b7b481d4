"""Who works in a folder: the process that holds the lock on one of its files, as far as the system tells."""

import os
from pathlib import Path

_LONGEST = 80


def holder_of(path: Path) -> str:
    """The process that holds `path`, for messages: its number and command. "another process" where nobody can say.

    Linux lists locks in /proc/locks, one in a line: number, kind, mode, access, process, device:inode, start, end.
    """
    try:
        inode = str(path.stat().st_ino)
        rows = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        holders = {int(row[4]) for row in rows if row[1] == "FLOCK" and row[5].rpartition(":")[2] == inode}
        (process,) = holders - {0, -1}  # of another container
        command = Path(f"/proc/{process}/cmdline").read_text(errors="replace").replace("\0", " ")
    except (OSError, ValueError, IndexError):
        return "another process"
    shown = "".join(filter(str.isprintable, command)).strip()
    who = "this process" if process == os.getpid() else f"process {process}"
    return f"{who} ({shown[:_LONGEST]})"

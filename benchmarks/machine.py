"""What the numbers were measured on and with."""

import os
import platform
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path


def describe() -> dict[str, str]:
    """Processor, cores, memory, system and versions."""
    return {
        "processor": _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}, {' '.join(platform.libc_ver())}",
        "python": platform.python_version(),
        **versions(("propfair", "torch", "numpy")),
    }


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Of those that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def version_elsewhere(python: str, package: str) -> str:
    """The version of a package in another environment; empty if it is not there."""
    code = f"from importlib import metadata; print(metadata.version({package!r}))"
    asked = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return asked.stdout.strip()


def _field(path: str, name: str) -> str:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")

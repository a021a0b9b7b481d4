"""Environments that have propfair and its core dependencies, and no extra."""

import os
import subprocess
import sys
import sysconfig
import venv
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


class Place:
    """A virtual environment that knows nothing of this one: no PYTHONPATH, no current folder."""

    def __init__(self, home: Path) -> None:
        self.home = home / "venv"
        self.work = home / "work"
        self.work.mkdir()
        venv.create(self.home, with_pip=False)

    def install(self, *arguments: str) -> None:
        """Install with the pip of the environment that runs the tests."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.home / "bin" / "python"), "install", "--quiet"]
        subprocess.run([*pip, *arguments], check=True)

    def link(self, packages: list[str]) -> None:
        """Make installed distributions visible there, which takes no time where downloading torch takes minutes."""
        ours = Path(sysconfig.get_path("purelib"))
        (theirs,) = self.home.glob("lib/python*/site-packages")
        for package in packages:
            for top in {file.parts[0] for file in metadata.files(package) or []} - {"..", "__pycache__"}:
                (theirs / top).symlink_to(ours / top)

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run a program of the environment: `propfair`, `python`."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PROPFAIR", "COV"))}
        program = str(self.home / "bin" / command[0])
        return subprocess.run(
            [program, *command[1:]], cwd=self.work, env=kept, capture_output=True, text=True, check=False, timeout=280
        )


def build_wheel(folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def needed_by(package: str) -> list[str]:
    """The distributions that a package needs without extras, and those that they need."""
    found: dict[str, None] = {}

    def visit(name: str) -> None:
        for text in metadata.requires(name) or []:
            required = Requirement(text)
            wanted = required.marker is None or required.marker.evaluate({"extra": ""})
            if wanted and required.name not in found:
                found[required.name] = None
                visit(required.name)

    visit(package)
    return list(found)

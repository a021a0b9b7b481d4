"""Every snippet of the README runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
PYTHON = [text for language, text in BLOCKS if language == "python"]
COMMANDS = [line for language, text in BLOCKS if language == "bash" for line in text.splitlines() if line.strip()]


def test_there_is_something_to_run() -> None:
    assert len(PYTHON) == 2
    assert len(COMMANDS) >= 4


@pytest.mark.parametrize("code", PYTHON, ids=["one-line-loss", "library"])
def test_python(code: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_command(command: str, tmp_path: Path) -> None:
    program = Path(sys.executable).parent
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": f"{program}{os.pathsep}{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_two_commands_exist(target: str) -> None:
    assert f"\nmake {target} " in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"\n{target}: " in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_pictures_are_there() -> None:
    for path in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8")):
        assert (ROOT / path).is_file(), path

"""Chromium, if there is one: scripts/install-browser brings it where it can."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

ARTIFACTS = Path(__file__).parents[2] / "artifacts"
_FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


def eventually(holds: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until something holds; the browser's own way needs strings as code, which the pages' policy forbids."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    names = (os.environ.get("CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    program = next((found for name in names if name and (found := shutil.which(name))), None)
    if program is None:
        give_up = pytest.fail if os.environ.get("CI") else pytest.skip
        give_up("no chromium: run scripts/install-browser, or set CHROMIUM to its path")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def artifacts() -> Path:
    """Where screenshots are kept."""
    ARTIFACTS.mkdir(exist_ok=True)
    return ARTIFACTS

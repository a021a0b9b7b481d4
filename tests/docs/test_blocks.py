"""Every code block of the documentation runs as it stands, in the order of its page and in one folder for each page.

Python blocks of a page share their names, and `>>>` blocks are checked as doctests. A block with a title is a file of
that name. Commands of propfair run in this process, which saves importing torch for each; others in bash. A block that
can't run here carries the reason above it: `<!-- not run: needs a GPU -->`.
"""

import doctest
import os
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from propfair.algorithms.base import ALGORITHMS
from propfair.data.base import SOURCES
from propfair.engines.session import ENGINES
from propfair.federation.partition import PARTITIONERS
from propfair.models.base import MODELS

ROOT = Path(__file__).parents[2]
RUNNABLE = ("python", "bash", "toml")
_BLOCK = re.compile(
    r"(?:^ *<!-- not run: (?P<reason>.+?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\w*)(?: title=\"(?P<title>.+?)\")?\n(?P<code>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    language: str
    title: str | None
    code: str
    line: int
    reason: str | None


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            found["language"], found["title"], textwrap.dedent(found["code"]), text[: found.start("code")].count("\n"),
            found["reason"],
        )
        for found in _BLOCK.finditer(text)
    ]  # fmt: skip


PAGES = {
    str(page.relative_to(ROOT)): found
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
    if (found := blocks(page))
}
LONG = ("docs/experiments.md",)  # sweeps start processes


@pytest.fixture
def registries() -> Iterator[None]:
    """Pages register parts of their own; the next test must not see them."""
    everything: list[Any] = [ALGORITHMS, SOURCES, ENGINES, MODELS, PARTITIONERS]
    known = [(registry, registry.names() and dict(registry._parts)) for registry in everything]
    yield
    for registry, parts in known:
        registry._parts.clear()
        registry._parts.update(parts)


@pytest.mark.parametrize("page", [pytest.param(page, marks=pytest.mark.slow if page in LONG else ()) for page in PAGES])
@pytest.mark.usefixtures("registries")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the packages that pages import
def test_every_block_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in PAGES[page]:
        place = f"{page}:{block.line}"
        if block.language == "toml":
            tomllib.loads(block.code)
        if block.reason:
            continue
        if block.title:
            (tmp_path / block.title).write_text(block.code, encoding="utf-8")
        elif block.language == "bash":
            for command in _commands(block.code):
                _run(command, place, monkeypatch)
        elif block.code.startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(block.code, names, place, page, block.line)
            result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, clear_globs=False)
            assert result.failed == 0, place
            names.update(test.globs)
        elif block.language == "python":
            # Blank lines put errors on the page's own lines.
            exec(compile("\n" * block.line + block.code, str(ROOT / page), "exec"), names)


def _commands(code: str) -> list[str]:
    """The lines of a shell block; a backslash at the end goes on."""
    return [line for line in code.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]


def _run(command: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(command, comments=True)
    if words[0] != "propfair":
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{place}: {command}\n{done.stdout}{done.stderr}"
        return
    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("default")  # a command prints warnings and goes on
        warnings.simplefilter("ignore", DeprecationWarning)
        from propfair.cli import main

        patch.setattr(warnings, "formatwarning", warnings.formatwarning)
        patch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code, f"{place}: {command}"


@pytest.mark.parametrize("page", PAGES)
def test_blocks_say_what_they_are(page: str) -> None:
    """A block without a language would not run and not be missed."""
    for block in PAGES[page]:
        assert block.language in (*RUNNABLE, "text", "diff"), f"{page}:{block.line}"


def test_every_fence_is_found() -> None:
    for page, found in PAGES.items():
        fences = re.findall(r"^ *```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
        assert len(fences) == 2 * len(found), page
    assert {"README.md", "docs/tutorial.md", "docs/theory.md", "docs/guides/own-algorithm.md"} <= PAGES.keys()
    left_out = [block for page in PAGES.values() for block in page if block.reason]
    assert len(left_out) <= 10


def test_the_two_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = [command.split() for block in PAGES["README.md"] if block.reason for command in _commands(block.code)]
    assert [words[:2] for words in commands] == [["make", "demo"], ["make", "test"]]
    for _, target, *_ in commands:
        assert f"\n{target}: " in makefile


def test_pictures_are_there() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        for path in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / path).is_file(), f"{page}: {path}"

"""Every code block of the documentation runs as it stands, in the order of its page.

Python blocks of a page share their names; `>>>` blocks are checked as doctests; bash blocks run in the same folder. A
block that can't run here carries the reason above it: `<!-- not run: needs a GPU -->`.
"""

import doctest
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from propfair.algorithms.base import ALGORITHMS
from propfair.data.base import SOURCES
from propfair.engines.base import ENGINES
from propfair.models.base import MODELS
from propfair.partition import PARTITIONERS

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>.+?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>python|bash)[^\n]*\n(?P<code>.*?)^(?P=indent)```",
    re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    language: str
    code: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(found["language"], textwrap.dedent(found["code"]), text[: found.start("code")].count("\n"))
        for found in _BLOCK.finditer(text)
        if not found["reason"]
    ]


PAGES = [page for page in (ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))) if blocks(page)]


@pytest.fixture
def registries() -> Iterator[None]:
    """Pages register parts of their own; the next test must not see them."""
    everything: list[Any] = [ALGORITHMS, SOURCES, ENGINES, MODELS, PARTITIONERS]
    known = [(registry, registry.names() and dict(registry._parts)) for registry in everything]
    yield
    for registry, parts in known:
        registry._parts.clear()
        registry._parts.update(parts)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
@pytest.mark.usefixtures("registries")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the packages that pages import
def test_every_block_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        place = f"{page.relative_to(ROOT)}:{block.line}"
        if block.language == "bash":
            _run_commands(block.code, place)
        elif block.code.startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(block.code, names, place, str(page), block.line)
            result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, clear_globs=False)
            assert result.failed == 0, place
            names.update(test.globs)
        else:
            # Blank lines put errors on the page's own lines.
            exec(compile("\n" * block.line + block.code, str(page), "exec"), names)


def _run_commands(code: str, place: str) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{place}\n{done.stdout}{done.stderr}"


def test_blocks_are_found() -> None:
    names = {str(page.relative_to(ROOT)) for page in PAGES}
    assert {"CONTRIBUTING.md", "docs/tutorial.md", "docs/theory.md", "docs/guides/own-algorithm.md"} <= names
    assert len(blocks(ROOT / "docs" / "guides" / "gpu.md")) == 1  # two say why they do not run

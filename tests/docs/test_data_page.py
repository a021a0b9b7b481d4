"""The snippets of docs/data.md run as printed, and its tables name what exists."""

import re
from pathlib import Path

from propfair.data import SOURCES
from propfair.models import MODELS
from propfair.partition import PARTITIONERS

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")


def test_snippets_run() -> None:
    snippets = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(snippets) >= 5
    known = dict(SOURCES._parts)
    try:
        exec(compile("\n".join(snippets), "docs/data.md", "exec"), {"__name__": "docs.data"})
    finally:
        SOURCES._parts.clear()
        SOURCES._parts.update(known)


def test_every_part_is_on_the_page() -> None:
    for registry in (SOURCES, MODELS, PARTITIONERS):
        for name in registry.names():
            assert f"`{name}`" in PAGE, f"{registry.kind} {name!r} is not in docs/data.md"

"""The tables of docs/data.md name what exists."""

from pathlib import Path

from propfair.data import SOURCES
from propfair.federation.partition import PARTITIONERS
from propfair.models import MODELS

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")


def test_every_part_is_on_the_page() -> None:
    for registry in (SOURCES, MODELS, PARTITIONERS):
        for name in registry.names():
            assert f"`{name}`" in PAGE, f"{registry.kind} {name!r} is not in docs/data.md"

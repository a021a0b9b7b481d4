"""The results page says what the records in results/ say."""

import tomllib
from pathlib import Path

import pytest
from benchmarks.results import PAGES, ROOT, rebuilt


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tables_are_those_of_the_records(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "<!-- end of the table -->" in text
    assert rebuilt(text) == text, "python -m benchmarks.results writes the tables again"


def test_every_record_is_shown() -> None:
    text = PAGES[0].read_text(encoding="utf-8")
    kept = sorted(path.name for path in (ROOT / "results").glob("*.parquet"))
    assert [name for name in kept if f"results/{name} " not in text] == []
    gallery = tomllib.loads((ROOT / "results" / "gallery.toml").read_text(encoding="utf-8"))
    assert sorted(one["file"] for one in gallery["experiment"]) == kept

"""The results page says what the records in results/ say."""

from benchmarks.results import PAGE, ROOT, rebuilt


def test_the_tables_are_those_of_the_records() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert rebuilt(text) == text, "python -m benchmarks.results writes the tables again"


def test_every_record_is_shown() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [path.name for path in sorted((ROOT / "results").iterdir()) if f"results/{path.name} " not in text] == []

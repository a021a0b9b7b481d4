"""Which algorithm for me: every registered algorithm answers every question, and the page says what the classes say."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from propfair.algorithms import ALGORITHMS, guide
from propfair.algorithms.guide import COLUMNS, entries, entry_of

ROOT = Path(__file__).parents[2]


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_tables", ROOT / "scripts" / "write_algorithm_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_every_algorithm_answers_every_question(name: str) -> None:
    entry = entry_of(name)
    assert entry is not None, "no advice"
    for column in COLUMNS:
        answer = getattr(entry, column)
        assert answer
        assert "|" not in answer
        assert "\n" not in answer
    assert "advice" in vars(ALGORITHMS.get(name)), "inherited from another algorithm"
    assert entry.reference[-5:-1].isdigit() or "limit" in entry.reference


def test_the_page_says_what_the_classes_say() -> None:
    page = (ROOT / "docs" / "which-algorithm.md").read_text(encoding="utf-8")
    assert script().with_tables(page) == page, "run: python scripts/write_algorithm_tables.py"
    for entry in entries():
        assert f"| `{entry.name}` |" in page


def test_costs_and_what_the_server_sees_follow_from_the_class() -> None:
    found = {entry.name: entry for entry in entries()}
    assert found["fedavg"].cost == "Nothing."
    assert found["afl"].cost == "A pass over the training data for the losses."
    assert "inner products" in found["upgrad"].cost
    assert found["gifair"].sees == "losses"
    assert found["scaffold"].sees == "updates"
    assert found["fednova"].sees == "what `over` needs"
    assert guide.example_of("gifair").privacy == "losses"

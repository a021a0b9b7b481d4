"""What docs/flower.md and docs/scale.md say that the server sees is what the algorithms themselves say."""

import re
from pathlib import Path

import pytest

from propfair.algorithms import ALGORITHMS
from tests.builders import REQUIRED

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["flower.md", "scale.md"])
def test_the_table_of_what_the_server_sees_is_that_of_the_algorithms(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    said = {
        name: row[1]
        for row in re.finditer(r"^\| (sums|losses|updates) \| (.*?) \|", text, flags=re.MULTILINE)
        for name in re.findall(r"`(.*?)`", row[2])
    }
    assert len(said) >= 5
    assert said == {name: ALGORITHMS.make(name, REQUIRED.get(name, {})).privacy for name in said}

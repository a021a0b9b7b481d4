"""docs/flower.md says of every algorithm what the server sees, as the algorithm itself does."""

import re
from pathlib import Path

from propfair.algorithms import ALGORITHMS
from tests.contract.test_algorithms import REQUIRED

PAGE = (Path(__file__).parents[2] / "docs" / "flower.md").read_text(encoding="utf-8")


def test_the_table_of_what_the_server_sees_is_that_of_the_algorithms() -> None:
    said = {
        name: row[1]
        for row in re.finditer(r"^\| (sums|losses|updates) \| (.*?) \|", PAGE, flags=re.MULTILINE)
        for name in re.findall(r"`(.*?)`", row[2])
    }
    assert said == {name: ALGORITHMS.make(name, REQUIRED.get(name, {})).privacy for name in ALGORITHMS.names()}

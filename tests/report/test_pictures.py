"""Pictures for few and many clients, short and long names."""

from pathlib import Path

import numpy as np
import pytest

from propfair.report.drawing import new_figure, widen
from propfair.report.picture import draw_comparison
from propfair.report.relative import draw_relative


@pytest.mark.parametrize("num_clients", [3, 41, 100])
def test_a_comparison_of_few_and_many_clients(tmp_path: Path, num_clients: int) -> None:
    accuracies = {name: np.linspace(0.2, 0.9, 2 * num_clients).reshape(2, -1) for name in ("fedavg", "propfair")}
    draw_comparison(
        accuracies,
        [f"client number {k}" for k in range(num_clients)],
        tmp_path / "picture.png",
        "who is served how well",
    )
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["1", "Zoë & co", "office 17, $5"])
@pytest.mark.parametrize("num_clients", [2, 60])
def test_relative_changes_of_clients_with_short_and_long_names(tmp_path: Path, name: str, num_clients: int) -> None:
    changes = [np.linspace(-0.1, 0.2, num_clients)] * 2
    draw_relative(["a", "b"], changes, [name] * num_clients, tmp_path / "picture.svg", "who gains")
    assert (tmp_path / "picture.svg").read_text().startswith("<?xml")


def test_what_is_all_but_the_same_does_not_look_far_apart() -> None:
    axes = new_figure(4, 3).subplots()
    axes.plot([50.0, 50.001], [0.0, 80.0], "o")
    before = axes.get_ylim()
    widen(axes, 1.0)
    assert axes.get_xlim() == pytest.approx((49.5005, 50.5005))
    assert axes.get_ylim() == before

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from propfair.errors import ConfigError, MissingExtraError
from propfair.fairness import afl_failure, example_afl_failure, example_nash, nash_example
from propfair.fairness.examples import (
    OBJECTIVES,
    AflFailure,
    draw_points,
    exact_error,
    logistic_losses,
    outliers,
    solve,
    training_error,
)


@pytest.fixture(scope="module")
def failure() -> AflFailure:
    return afl_failure()


@pytest.mark.parametrize("w", [(-1.0, 0.3), (-0.3, 1.0), (0.4, -1.0), (1.0, 0.8), (-2.0, -2.0), (0.0, 1.0), (1.0, 0.0)])
def test_exact_error_agrees_with_draws(w: tuple[float, float]) -> None:
    drawn = training_error(w, draw_points(200_000, seed=1))
    assert exact_error(w) == pytest.approx(drawn, abs=4e-3)


@pytest.mark.parametrize(
    ("w", "error"), [((-1, 0), 0.1), ((0, 1), 0.5), ((0, -1), 0.5), ((1, 0), 0.9), ((-0.6, 1), 0.38), ((0, 0), 0.5)]
)
def test_exact_error_in_closed_form(w: tuple[float, float], error: float) -> None:
    assert exact_error(w) == pytest.approx(error)


def test_printed_samples_do_not_separate_the_objectives(failure: AflFailure) -> None:
    for row in failure.printed:
        np.testing.assert_allclose(row.w, 0.0, atol=1e-9)
        assert row.test_error == 0.5
    table = {row.w: row for row in failure.directions}
    assert table[-1.0, 0.0].training_errors == (1.0, 0.0)
    assert table[0.0, 1.0].training_errors == (0.5, 0.5)
    # All of |w2| > |w1| is optimal for AFL, and its test errors are not 50 % alone.
    cone = [row.test_error for row in failure.directions if abs(row.w[1]) > abs(row.w[0])]
    assert {row.training_errors for row in failure.directions if abs(row.w[1]) > abs(row.w[0])} == {(0.5, 0.5)}
    assert min(cone) < 0.5 < max(cone)


def test_solutions_are_minima(failure: AflFailure) -> None:
    shares = [len(client.y) for client in failure.clients]
    for row in failure.runnable:
        objective = OBJECTIVES[row.objective]
        value = objective.mean(logistic_losses(np.array(row.w), failure.clients), shares)
        for step in 1e-2 * np.array([[1, 0], [-1, 0], [0, 1], [0, -1], [1, 1], [1, -1], [-1, 1], [-1, -1]]):
            nearby = logistic_losses(np.array(row.w) + step, failure.clients)
            assert objective.mean(nearby, shares) > value, row.objective


def test_dual_weights_make_fedavg_find_the_same_model(failure: AflFailure) -> None:
    for row in failure.runnable:
        if row.objective != "AFL":
            losses = np.array(row.losses)
            wanted = OBJECTIVES[row.objective].dual_weights(losses, [4, 400], normalize=True)
            np.testing.assert_allclose(row.weights, wanted, atol=1e-7)
        gradient = np.zeros(2)
        for weight, client in zip(row.weights, failure.clients, strict=True):
            wrong = 1 / (1 + np.exp(client.y * (client.x @ np.array(row.w))))
            gradient -= weight * ((client.y * wrong)[:, None] * client.x).mean(axis=0)
        np.testing.assert_allclose(gradient, 0.0, atol=1e-9)


def test_only_afl_fails_whatever_the_draws() -> None:
    for seed in (1, 2):
        clients = (outliers(), draw_points(400, seed))
        errors = {name: exact_error(tuple(solve(clients, OBJECTIVES[name])[0])) for name in ("FedAvg", "AFL")}
        assert errors["FedAvg"] < 0.13
        assert errors["AFL"] > 0.25


def test_nash_example_matches_closed_forms() -> None:
    result = nash_example()
    np.testing.assert_allclose(result.fairest.utilities, [0.5, 0.5], rtol=1e-9)
    np.testing.assert_allclose(result.edge.sum(axis=1), 1.0)
    np.testing.assert_allclose(result.nash.utilities, [np.sqrt(0.5), np.sqrt(0.125)], rtol=1e-9)
    assert (result.curve.sum(axis=1) <= result.utilitarian.sum() + 1e-12).all()
    assert (result.curve.min(axis=1) <= result.egalitarian.min() + 1e-12).all()
    on_curve = [result.utilitarian, result.nash.utilities, result.egalitarian]
    np.testing.assert_allclose([u[0] ** 2 + 4 * u[1] ** 2 for u in on_curve], 1.0)


def test_pictures_are_written_whole(tmp_path: Path) -> None:
    example_afl_failure(tmp_path / "afl.png")
    example_nash(tmp_path / "nash.svg")
    assert (tmp_path / "afl.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "nash.svg").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"afl.png", "nash.svg"}


def test_pictures_without_matplotlib_say_how_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for example in (example_afl_failure, example_nash):
        with pytest.raises(MissingExtraError, match=r"propfair\[plot\]"):
            example(tmp_path / "x.png")


def test_too_few_draws() -> None:
    with pytest.raises(ConfigError, match="num_draws"):
        afl_failure(num_draws=1)


def test_the_theory_imports_numpy_only() -> None:
    code = (
        "import sys, propfair.fairness\n"
        "print([name for name in ('torch', 'scipy', 'clarabel', 'matplotlib', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

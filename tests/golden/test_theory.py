"""Numbers of the theory that were worked out by hand or by an independent script."""

import math

import numpy as np
import pytest

from propfair.fairness.bounds import BoundWarning, fedavg_bound, propfair_bound
from propfair.fairness.certificate import certificate
from propfair.fairness.examples import afl_failure
from propfair.fairness.means import HuberizedMean, PowerMean, ProportionalMean, TiltedMean

P3, F3 = [0.5, 0.3, 0.2], [0.5, 1.0, 2.0]
P4, F4 = [0.4, 0.3, 0.2, 0.1], [0.3, 0.9, 1.4, 0.6]


def test_dual_weights_of_four_clients() -> None:
    def check(actual: np.ndarray, expected: list[float]) -> None:
        np.testing.assert_allclose(actual, expected, atol=5.1e-5)

    check(TiltedMean(0.5).dual_weights(F4, P4), [0.3155, 0.3194, 0.2734, 0.0916])
    propfair = ProportionalMean(2.0)
    check(propfair.dual_weights(F4, P4), [0.2795, 0.3240, 0.3960, 0.0849])
    assert propfair.dual_weights(F4, P4).sum() == pytest.approx(1.0844, abs=5e-5)
    check(propfair.dual_weights(F4, P4, normalize=True), [0.2578, 0.2988, 0.3652, 0.0783])
    check(PowerMean(2.0).dual_weights(F4, P4), [0.0418, 0.2820, 0.4549, 0.0418])
    assert PowerMean(2.0).dual_weights(F4, P4).sum() == pytest.approx(0.8205, abs=5e-5)


def test_means_and_objectives_of_three_clients() -> None:
    assert TiltedMean(0.5).mean(F3, P3) == pytest.approx(1.0379274, abs=5e-8)
    np.testing.assert_allclose(TiltedMean(0.5).dual_weights(F3, P3), [0.3820855, 0.2943645, 0.3235500], atol=5e-8)
    huber = HuberizedMean(M=2.0, epsilon=0.2)
    assert huber.objective(F3, P3) == pytest.approx(0.3191550, abs=5e-8)
    np.testing.assert_allclose(np.exp(huber.log_slope(np.array(F3))), [2 / 3, 1.0, 5.0])
    assert HuberizedMean(M=5.0, epsilon=0.2).objective(F3, P3) == pytest.approx(-1.3876495, abs=5e-8)
    np.testing.assert_allclose(np.exp(ProportionalMean(5.0).log_slope(np.array(F3))), [2 / 9, 1 / 4, 1 / 3])


def test_the_rejected_utility_favours_disparity() -> None:
    # Section 3.1: minimising sum p log f prefers (1/3, 2/3) to (1/2, 1/2); utilities M - f never do.
    assert math.log(1 / 3) + math.log(2 / 3) < 2 * math.log(1 / 2)
    for M in (1.0, 2.0, 5.0, 100.0):
        advantage = (M - 1 / 2) ** 2 - (M - 1 / 3) * (M - 2 / 3)
        assert advantage == pytest.approx(1 / 36, abs=1e-9)
        mean = ProportionalMean(M)
        assert mean.objective([0.5, 0.5], "uniform") < mean.objective([1 / 3, 2 / 3], "uniform")


def test_certificates() -> None:
    u, star = [0.6, 0.5, 0.4], [0.5, 0.5, 0.5]
    assert certificate(u, star, P3).maximum == pytest.approx(0.06)
    assert certificate(star, u, P3).maximum == pytest.approx(-0.0333333, abs=5e-8)
    assert certificate(u, star, "uniform").maximum == pytest.approx(0.0, abs=1e-15)


def test_fedavg_theorem() -> None:
    def bound(participation: str = "full", safe: bool = False) -> tuple[float, float, float]:
        result = fedavg_bound(
            L=1.0,
            sigma=0.5,
            sigma_i=1.0,
            batch_size=64,
            shares=P3,
            local_steps=[10, 6, 4],
            gap=2.0,
            rounds=100,
            eta=0.003,
            participation=participation,  # type: ignore[arg-type]
            safe=safe,
        )
        assert result.limits.local_steps == pytest.approx(0.0166667, abs=5e-8)
        assert result.limits.drift == pytest.approx(0.00363519, abs=5e-9)
        return result.mu, result.psi, result.bound

    assert bound() == pytest.approx((7.6, 0.0434519085774, 3.40224710871), rel=1e-11)
    assert bound(safe=True) == pytest.approx((7.6, 0.0434559698274, 3.40246487010), rel=1e-11)
    with pytest.warns(BoundWarning, match="worst_subset"):
        assert bound("partial") == pytest.approx((4.0, 0.0434519085774, 7.25164669456), rel=1e-11)


def test_propfair_theorem() -> None:
    result = propfair_bound(
        M=5.0,
        L=1.0,
        L0=1.0,
        sigma=0.5,
        sigma_i=1.0,
        sigma_0=0.5,
        sigma_0i=1.0,
        batch_size=64,
        shares=P3,
        local_steps=[10, 6, 4],
        gap=0.5,
        rounds=100,
        eta=0.0015,
    )
    constants = result.constants
    np.testing.assert_allclose([constants.L, constants.sigma, *constants.sigma_i**2], [1.36, 0.68] + 3 * [2.9312])
    assert result.limits.local_steps == pytest.approx(0.0122549, abs=5e-8)
    assert result.limits.drift == pytest.approx(0.00163683, abs=5e-9)
    assert result.psi == pytest.approx(0.0842528289200, rel=1e-11)
    assert result.bound == pytest.approx(9.57134894584, rel=1e-11)


def test_afl_failure_table() -> None:
    table = {row.objective: row for row in afl_failure().runnable}
    expected = {
        "FedAvg": ((-4.04, 0.16), (2.143, 0.363), 10.8),
        "AFL": ((0.002, 0.083), (0.693, 0.693), 50.5),
        "q-FFL, q=0.1": ((-3.99, 0.16), (2.122, 0.363), 10.8),
        "q-FFL, q=5": ((-1.18, 0.09), (1.030, 0.502), 11.6),
        "TERM, alpha=0.5": ((-3.75, 0.15), (2.018, 0.365), 10.8),
        "TERM, alpha=10": ((-0.85, 0.09), (0.928, 0.544), 12.1),
        "PropFair, M=2": ((-3.10, 0.14), (1.742, 0.376), 10.9),
        "PropFair, M=5": ((-3.90, 0.16), (2.083, 0.364), 10.8),
    }
    assert table.keys() == expected.keys()
    for name, (w, losses, error) in expected.items():
        row = table[name]
        np.testing.assert_allclose(row.w, w, atol=6e-3, err_msg=name)
        np.testing.assert_allclose(row.losses, losses, atol=6e-4, err_msg=name)
        assert 100 * row.test_error == pytest.approx(error, abs=0.06)

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from propfair.errors import ConfigError, DataError
from propfair.fairness.means import (
    MEANS,
    AlphaFairMean,
    ArithmeticMean,
    DualMean,
    GeneralizedMean,
    HuberizedMean,
    Maximum,
    PowerMean,
    ProportionalMean,
    TiltedMean,
)
from propfair.fairness.power import power_mean

relaxed = settings(deadline=None, max_examples=50)

M = 5.0
SEPARABLE: list[GeneralizedMean] = [
    ArithmeticMean(),
    PowerMean(0.0),
    PowerMean(0.1),
    PowerMean(2.0),
    TiltedMean(0.5),
    TiltedMean(3.0),
    TiltedMean(-1.0),
    ProportionalMean(M),
    AlphaFairMean(0.0, M),
    AlphaFairMean(0.5, M),
    AlphaFairMean(2.0, M),
    HuberizedMean(3.0, 1.0),
    HuberizedMean(3.0, 1.0, alpha=2.0),
]
CONJUGATE: list[DualMean] = [mean for mean in SEPARABLE if isinstance(mean, DualMean) and mean != TiltedMean(-1.0)]
CONJUGATE.append(Maximum())


@st.composite
def clients(draw: st.DrawFn, low: float = 0.01, high: float = M - 0.1) -> tuple[np.ndarray, np.ndarray]:
    n = draw(st.integers(1, 8))
    losses = draw(st.lists(st.floats(low, high), min_size=n, max_size=n))
    sizes = draw(st.lists(st.floats(0.05, 1.0), min_size=n, max_size=n))
    return np.array(losses), np.array(sizes) / sum(sizes)


def random_feasible(mean: DualMean, p: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random point of the dual domain: scale or spread p until the constraints hold."""
    n = p.size
    ratio = rng.gamma(1.0, size=n) + 1e-3
    match mean:
        case ArithmeticMean():
            return p
        case PowerMean(q):
            order = (q + 1) / q if q > 0 else math.inf
            return p * ratio / power_mean(ratio, p, order) * rng.uniform(0, 1)
        case Maximum():
            return rng.dirichlet(np.ones(n)) * rng.uniform(0, 1)
        case TiltedMean():
            return rng.dirichlet(np.ones(n))
        case AlphaFairMean(alpha):
            order = (alpha - 1) / alpha if alpha > 0 else -math.inf
            return p * ratio / power_mean(ratio, p, order) * (1 + rng.exponential())
    raise AssertionError(mean)


@pytest.mark.parametrize("mean", SEPARABLE, ids=repr)
@relaxed
@given(clients())
def test_mean_is_kolmogorovs(mean: GeneralizedMean, example: tuple[np.ndarray, np.ndarray]) -> None:
    f, p = example
    value = mean.mean(f, p)
    assert value == pytest.approx(mean.inverse(float(p @ mean.phi(f))), rel=1e-9, abs=1e-9)
    assert f.min() - 1e-9 <= value <= f.max() + 1e-9
    assert mean.objective(f, p) == pytest.approx(float(mean.phi(np.array([value]))[0]), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("mean", SEPARABLE, ids=repr)
def test_dual_weights_are_the_gradient(mean: GeneralizedMean) -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        f, p = rng.uniform(0.2, 4.0, 5), rng.dirichlet(np.ones(5) * 3)
        if isinstance(mean, HuberizedMean) and np.abs(mean.M - mean.epsilon - f).min() < 1e-3:
            continue
        h = 1e-5
        numeric = [(mean.mean(f + h * e, p) - mean.mean(f - h * e, p)) / (2 * h) for e in np.eye(5)]
        np.testing.assert_allclose(mean.dual_weights(f, p), numeric, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("mean", CONJUGATE, ids=repr)
@relaxed
@given(clients())
def test_fenchel_equality_at_the_dual_weights(mean: DualMean, example: tuple[np.ndarray, np.ndarray]) -> None:
    f, p = example
    weights = mean.dual_weights(f, p)
    assert mean.is_feasible(weights, p)
    assert mean.fenchel_gap(f, weights, p) == pytest.approx(0.0, abs=1e-11)
    # The binding constraint is tight: lambda is on the boundary of the domain.
    assert max(c.excess for c in mean.constraints(weights, p)) == pytest.approx(0.0, abs=1e-11)


@pytest.mark.parametrize("mean", CONJUGATE, ids=repr)
@relaxed
@given(clients(), st.integers(0, 2**32))
def test_fenchel_young(mean: DualMean, example: tuple[np.ndarray, np.ndarray], seed: int) -> None:
    f, p = example
    weights = random_feasible(mean, p, np.random.default_rng(seed))
    assert math.isfinite(mean.conjugate(weights, p))
    assert mean.fenchel_gap(f, weights, p) >= -1e-9 * (1 + abs(weights).sum())


@pytest.mark.parametrize("mean", [m for m in SEPARABLE if m != TiltedMean(-1.0)], ids=repr)
@relaxed
@given(clients())
def test_worse_clients_never_count_less(mean: GeneralizedMean, example: tuple[np.ndarray, np.ndarray]) -> None:
    f, p = example
    ratio = (mean.dual_weights(f, p) / p)[np.argsort(f, kind="stable")]
    assert (np.diff(ratio) >= -1e-9).all()


@pytest.mark.parametrize(
    ("mean", "low", "high"),
    [(PowerMean(2.0), 0.0, 1.0), (TiltedMean(0.5), 1.0, 1.0), (ProportionalMean(M), 1.0, math.inf)],
    ids=repr,
)
@relaxed
@given(clients())
def test_sums_of_dual_weights(mean: DualMean, low: float, high: float, example: tuple[np.ndarray, np.ndarray]) -> None:
    f, p = example
    assert low - 1e-12 <= mean.dual_weights(f, p).sum() <= high + 1e-12
    assert mean.dual_weights(f, p, normalize=True).sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    "mean",
    [PowerMean(1e-9), TiltedMean(1e-9), ProportionalMean(1e9), AlphaFairMean(1e-9, M), HuberizedMean(M, M)],
    ids=repr,
)
@relaxed
@given(clients())
def test_limits_are_fedavg(mean: GeneralizedMean, example: tuple[np.ndarray, np.ndarray]) -> None:
    f, p = example
    np.testing.assert_allclose(mean.dual_weights(f, p), p, rtol=1e-6)
    assert mean.mean(f, p) == pytest.approx(float(p @ f), rel=1e-6)


@pytest.mark.parametrize("mean", [PowerMean(2000.0), TiltedMean(2000.0), AlphaFairMean(2000.0, M)], ids=repr)
def test_limits_are_afl(mean: GeneralizedMean) -> None:
    f, p = [0.5, 2.0, 1.0, 2.0], [0.1, 0.3, 0.5, 0.1]
    assert mean.mean(f, p) == pytest.approx(Maximum().mean(f, p), rel=1e-2)
    np.testing.assert_allclose(
        mean.dual_weights(f, p, normalize=True), Maximum().dual_weights(f, p), rtol=1e-6, atol=1e-12
    )


def test_alpha_fair_names() -> None:
    f, p = np.array([0.5, 1.0, 3.0]), np.array([0.2, 0.5, 0.3])
    u = M - f
    assert AlphaFairMean(2.0, M).mean(f, p) == pytest.approx(M - 1 / float(p @ (1 / u)))
    assert AlphaFairMean(1.0, M).mean(f, p) == pytest.approx(M - float(np.prod(u**p)))
    assert ProportionalMean(M).mean(f, p) == AlphaFairMean(1.0, M).mean(f, p)
    assert AlphaFairMean(0.0, M).mean(f, p) == pytest.approx(float(p @ f))


def test_extreme_losses_stay_finite() -> None:
    f, p = np.array([0.0, 1e-300, 1.0, 1e6]), np.full(4, 0.25)
    for mean in (PowerMean(0.1), PowerMean(5.0), TiltedMean(0.5), HuberizedMean(2.0, 0.2)):
        weights = mean.dual_weights(f, p)
        assert np.isfinite(weights).all()
        assert weights.argmax() == 3
        assert math.isfinite(mean.mean(f, p))
    assert PowerMean(2.0).mean([0.0, 0.0], "uniform") == 0.0
    np.testing.assert_array_equal(PowerMean(2.0).dual_weights([0.0, 0.0], [1, 3]), [0.25, 0.75])


def test_conjugate_is_infinite_outside() -> None:
    p = np.array([0.5, 0.5])
    outside: list[tuple[DualMean, list[float]]] = [
        (ArithmeticMean(), [0.6, 0.4]),
        (Maximum(), [0.6, 0.6]),
        (Maximum(), [-0.1, 0.5]),
        (PowerMean(1.0), [0.9, 0.9]),
        (TiltedMean(1.0), [0.5, 0.4]),
        (ProportionalMean(M), [0.5, 0.4]),
        (AlphaFairMean(2.0, M), [0.2, 0.6]),
    ]
    for mean, weights in outside:
        assert not mean.is_feasible(weights, p), mean
        assert mean.conjugate(weights, p) == math.inf
        assert any(constraint.excess > 1e-9 for constraint in mean.constraints(weights, p))


def test_conjugate_is_a_supremum() -> None:
    rng = np.random.default_rng(0)
    p = np.array([0.2, 0.3, 0.5])
    mean = AlphaFairMean(2.0, M)
    weights = random_feasible(mean, p, rng)
    values = [float(weights @ f) - mean.mean(f, p) for f in rng.uniform(-20, M, (2000, 3))]
    at_the_top = float(weights @ np.full(3, M - 1e-9)) - mean.mean(np.full(3, M - 1e-9), p)
    assert max(values) <= mean.conjugate(weights, p) + 1e-9
    assert at_the_top == pytest.approx(mean.conjugate(weights, p), abs=1e-6)


def test_every_named_mean_is_listed() -> None:
    assert set(MEANS) == {"fedavg", "afl", "q-ffl", "term", "propfair", "alpha-fair"}


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: PowerMean(-1.0), ConfigError, "q must be >= 0"),
        (lambda: TiltedMean(0.0), ConfigError, "ArithmeticMean"),
        (lambda: AlphaFairMean(-0.1, 2.0), ConfigError, "alpha must be >= 0"),
        (lambda: ProportionalMean(0.0), ConfigError, "M must be"),
        (lambda: HuberizedMean(1.0, 2.0), ConfigError, "epsilon <= M"),
        (lambda: ProportionalMean(2.0).mean([0.5, 2.0], "uniform"), DataError, "client 1"),
        (lambda: PowerMean(1.0).mean([-0.5], "uniform"), DataError, "losses must be >= 0"),
        (lambda: ArithmeticMean().mean([1.0, math.nan], "uniform"), DataError, "finite; got nan for client 1"),
        (lambda: ArithmeticMean().mean([1.0, 2.0], [1.0]), DataError, "each of 2 clients"),
        (lambda: ArithmeticMean().mean([1.0, 2.0], [1.0, 0.0]), DataError, "shares must be > 0"),
        (lambda: ArithmeticMean().mean([1.0], "samples"), ConfigError, "uniform"),
        (lambda: TiltedMean(-1.0).conjugate([1.0], "uniform"), ConfigError, "alpha > 0"),
        (lambda: Maximum().phi(np.ones(1)), ConfigError, "no mean of a function"),
        (lambda: Maximum().inverse(1.0), ConfigError, "no mean of a function"),
        (lambda: Maximum().log_slope(np.ones(1)), ConfigError, "no slope"),
    ],
)
def test_errors_say_what_to_do(call: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()  # type: ignore[operator]

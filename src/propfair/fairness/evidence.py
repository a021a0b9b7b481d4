r"""From tables of client values to the evidence on one number: a statistic, a difference, a certificate.

Tables have one row per seed and one column per client. With the clients' numbers of test examples, rows are taken as
accuracies, and the noise of the test examples is known as well.

The certificate $\sum_i p_i (u_i - u_i^*) / (u_i^*)^\alpha$ has the reference in the denominator, so noise raises it:
two models of the same accuracy, tested on a few examples, refute each other on average. To second order (the delta
method, Cramer 1946), client i adds

$$\tfrac12 f_{**} v_i^* + f_{u*} c_i, \qquad f(u, u^*) = (u - u^*) / (u^*)^\alpha,$$

with the variance $v^*$ of $u^*$ and the covariance c of u and u*, and intervals over examples take it off. For
proportional fairness this is $c_i / (n_i (u_i^*)^2)$ with the share $c_i$ of examples that only the other model gets
right, which is exact but for a factor $x^* / (x^* + 1)$ in the count $x^*$ of right answers; with that factor it is
unbiased (Chao and Strawderman 1972). The variance is that of the first-order terms, with 1/n added to each of the
four counts of a client (both right, only one, only the other, none), for n clients: Agresti and Min (2005) for one
client, Price and Bonett (2004) for several.

Two models are tested on the same examples and are right and wrong together. Where it is not known how often (`both`, or
the answers themselves), an interval would have to hold for anything from independence to the largest agreement, and
none is given. The same goes for the seeds of one model.
"""

from functools import partial

import numpy as np
import numpy.typing as npt

from propfair.errors import ConfigError, DataError
from propfair.fairness.arrays import FloatArray, Shares, matrix, normalized_shares, vector
from propfair.fairness.enough import either, not_agreed, too_few_for_product, too_few_for_quotient
from propfair.fairness.intervals import Evidence
from propfair.fairness.noise import (
    Answers,
    Draws,
    Noise,
    check_sizes,
    drawn_agreement,
    drawn_noise,
    linear_noise,
    product_noise,
    product_slopes,
)
from propfair.fairness.statistics import EQUALITIES, SPREADS, statistics_of_rows, tail_size

MAY_BE_LOST = 3  # right answers: a count of this mean is 0 once in twenty times (Poisson), and a product with it
Statistic = str | int  # a name of `summarize`, or the position of one client


def statistic_evidence(
    values: npt.ArrayLike,
    name: Statistic,
    *,
    weights: npt.ArrayLike | None = None,
    sizes: npt.ArrayLike | None = None,
    answers: npt.ArrayLike | Answers | None = None,
    higher_is_better: bool = True,
) -> Evidence:
    """The evidence on a statistic over clients.

    Args:
        values: [S, n], one row per seed; NaN columns (clients without test data) are left out.
        name: a statistic of `summarize`, or the position of a client.
        weights: [n], for weighted statistics.
        sizes: [n], test examples of each client, if the values are accuracies.
        answers: [S, N], which examples are answered right, those of the first client first.
        higher_is_better: False for losses.

    >>> evidence = statistic_evidence([[0.9, 0.7], [0.9, 0.6], [0.8, 0.7]], "mean", sizes=[50, 50])
    >>> evidence.interval()  # doctest: +ELLIPSIS
    Interval(value=0.7666..., low=0.6949..., high=0.8383..., level=0.95, over='seeds', num_seeds=3, family=1)
    """
    table, p, size = _table(values, weights, sizes, name)
    by_seed = _by_row(table, name, p, higher_is_better)
    if size is None:
        return Evidence(by_seed)
    accuracy = table.mean(axis=0)
    is_accuracy = name not in SPREADS | EQUALITIES
    is_product = str(name).endswith("nash_welfare")
    is_linear = isinstance(name, int) or name in ("mean", "weighted_mean")
    statistic = partial(_by_row, name=name, p=p, higher_is_better=higher_is_better)
    step = _step(name, table, size, p, higher_is_better)

    def noise() -> Noise:
        if is_linear:
            return linear_noise(accuracy, size, _weights(name, p))
        if is_product:
            return product_noise(table, size, _weights(name, p))
        return drawn_noise(statistic, accuracy, size, step=step, is_accuracy=is_accuracy, is_spread=name in SPREADS)

    known: Answers | Draws | None = None
    if answers is not None and sizes is not None:
        every = Answers.of(answers, vector("sizes", sizes))
        mean = _mean_answers(every, name, weights)
        if is_linear:
            known = mean
        elif is_product:
            slopes = product_slopes(table, size, _weights(name, p))
            known = Answers(lambda: every.values, size).weighted(slopes)
        else:
            known = Draws.of(
                answers, size, statistic,
                lambda: drawn_agreement(statistic, accuracy, size, mean.shared) if is_accuracy else mean.shared,
            )  # fmt: skip
    withheld = either(
        too_few_for_product(table, size) if is_product else {},
        not_agreed("both") if answers is None and len(table) > 1 else {},
    )
    bounds = (0.0, 1.0) if is_accuracy else (0.0, np.inf)
    jump = _welfare(accuracy, size, _weights(name, p)) if is_product and (accuracy * size < MAY_BE_LOST).any() else 0.0
    return Evidence(by_seed, step, noise, known, bounds, withheld, jump=jump)


def difference_evidence(a: Evidence, b: Evidence, *, same: bool = False) -> Evidence:
    """The evidence on a - b, row by row the same seeds.

    Args:
        a: on the first number.
        b: on the second number. Both must know their answers to the same examples for an interval over these.
        same: both are of one model.
    """
    if a.num_seeds != b.num_seeds:
        raise DataError(f"differences need one row for each of the same seeds; got {a.num_seeds} and {b.num_seeds}.")
    known = a.find_noise is not None and b.find_noise is not None
    step = max(a.step, b.step)
    answers = None if a.answers is None or b.answers is None else a.answers.minus(b.answers)

    def noise() -> Noise:
        apart = 0.0 if a.answers is None or b.answers is None else a.answers.variance + b.answers.variance
        part = answers.variance / apart if answers is not None and apart > 0 else 1.0
        # two examples more, of about 1 / step, on which answers agree by chance only
        part = (part + 2 * step) / (1 + 2 * step)
        bias = np.asarray(a.noise.bias) - np.asarray(b.noise.bias)
        return Noise(part * (a.noise.variance + b.noise.variance), bias=tuple(bias.tolist()))

    withheld = either(
        a.withheld,
        b.withheld,
        {} if answers is not None else not_agreed("examples", "both"),
    )
    return Evidence(
        a.by_seed - b.by_seed, step, noise if known else None, answers, withheld=withheld, same=same,
        jump=max(a.jump, b.jump),
    )  # fmt: skip


def certificate_evidence(
    u: npt.ArrayLike,
    u_star: npt.ArrayLike,
    shares: Shares,
    *,
    alpha: float = 1.0,
    total: npt.ArrayLike | None = None,
    both: npt.ArrayLike | None = None,
    answers: tuple[npt.ArrayLike | Answers, npt.ArrayLike | Answers] | None = None,
) -> Evidence:
    """The evidence on the certificate of one model against another.

    Args:
        u: [S, n] or [n], the other model's utilities, one row per seed.
        u_star: [S, n] or [n], the reference model's under the same seeds, all > 0.
        shares: [n], data sizes or shares, or "uniform".
        alpha: order of fairness.
        total: [n], test examples, if the utilities are accuracies.
        both: [S, n] or [n], test examples that both models get right, if it is known.
        answers: of the other model and of the reference, [S, N] each: which examples they get right, those of the first
            client first. In place of `both`; it also says how much seeds agree.
    """
    star = matrix("u_star", u_star)
    for row in star:
        check_positive("u_star", row)
    other = matrix("u", u, star.shape[1])
    if len(other) != len(star):
        raise DataError(
            f"u and u_star must have one row for each of the same seeds; got {len(other)} rows and {len(star)} rows."
        )
    p = normalized_shares(shares, star.shape[1])
    check_alpha(alpha)
    by_seed = certificate_sums(other, star, p, alpha)
    same = bool(np.array_equal(other, star))
    if total is None:
        return Evidence(by_seed, same=same)
    size = vector("total", total, star.shape[1])
    check_sizes("total", size)
    known, shared = None, None
    if answers is not None:
        right, right_star = (Answers.of(one, size) for one in answers)
        shared = Answers(lambda: right.values * right_star.values, size)
        by_u, by_star = _slopes(other, star, alpha)
        known = right.weighted(p * by_u).minus(right_star.weighted(-p * by_star))
    agreed = None if both is None else np.broadcast_to(matrix("both", both, star.shape[1]), star.shape)
    step = float((p / star.mean(axis=0) ** alpha / size).mean())

    def noise() -> Noise:
        counts = agreed if shared is None else shared.by_client
        assert counts is not None  # else it is withheld
        by_row = [_certificate_noise(other[s], star[s], size, p, alpha, counts[s]) for s in range(len(star))]
        return Noise(
            float(np.mean([one.variance for one in by_row])), bias=tuple(b for one in by_row for b in one.bias)
        )

    withheld = either(
        too_few_for_quotient(star, size) if alpha else {},
        not_agreed("examples", "both") if agreed is None and shared is None else {},
        not_agreed("both") if known is None and len(star) > 1 else {},
    )
    least = -1.0 if alpha == 1 else -np.inf  # no client can lose more than all that it has
    return Evidence(by_seed, step, noise, known, (least, np.inf), withheld, same)


def certificate_sums(u: FloatArray, u_star: FloatArray, p: FloatArray, alpha: float) -> FloatArray:
    """The certificate, sum p (u - u*) / u*^alpha, along the last axis."""
    sums: FloatArray = ((u - u_star) / u_star**alpha) @ p
    return sums


def check_positive(name: str, values: npt.ArrayLike, length: int | None = None) -> FloatArray:
    """[n], all > 0."""
    x = vector(name, values, length)
    if (x <= 0).any():
        client = int(np.flatnonzero(x <= 0)[0])
        raise DataError(
            f"{name} must be > 0 for every client; got {x[client]:g} for client {client}. A relative change from 0 is "
            "undefined: use a utility that is positive (say M - loss), or report that this client gets nothing."
        )
    return x


def check_alpha(alpha: float) -> None:
    """Orders of fairness are numbers from 0 on."""
    if not 0 <= alpha < np.inf:
        raise ConfigError(f"alpha must be >= 0 and finite; got alpha={alpha}. Use alpha=1 for proportional fairness.")


def _certificate_noise(
    u: FloatArray, star: FloatArray, size: FloatArray, p: FloatArray, alpha: float, both: FloatArray
) -> Noise:
    """Variance and bias of one seed's certificate; see the top of this file."""
    agreed = both / size  # share of examples that both models get right
    factor = p / size * (size * star / (size * star + 1))
    extra = 1 / star.size
    rate, rate_star, rate_both = (
        (share * size + extra * cells) / (size + 4 * extra) for share, cells in ((u, 2), (star, 2), (agreed, 1))
    )
    covariance = rate_both - rate * rate_star
    by_u, by_star = _slopes(rate, rate_star, alpha)
    variance = by_u**2 * rate * (1 - rate) + by_star**2 * rate_star * (1 - rate_star) + 2 * by_u * by_star * covariance
    return Noise(
        variance=float((p**2 / size) @ np.maximum(variance, 0.0)), bias=(float(factor @ _bias(u, star, agreed, alpha)),)
    )


def _slopes(u: FloatArray, star: FloatArray, alpha: float) -> tuple[FloatArray, FloatArray]:
    """The derivatives of f by u and by u*."""
    by_u: FloatArray = star**-alpha
    by_star: FloatArray = -alpha * u * star ** (-alpha - 1) - (1 - alpha) * star**-alpha
    return by_u, by_star


def _bias(u: FloatArray, star: FloatArray, agreed: FloatArray, alpha: float) -> FloatArray:
    """The second-order terms of f for one test example."""
    curvature = alpha * ((alpha + 1) * u / star + 1 - alpha) * star ** (-alpha - 1)
    bias: FloatArray = curvature * star * (1 - star) / 2 - alpha * star ** (-alpha - 1) * (agreed - u * star)
    return bias


def _table(
    values: npt.ArrayLike, weights: npt.ArrayLike | None, sizes: npt.ArrayLike | None, name: Statistic
) -> tuple[FloatArray, FloatArray, FloatArray | None]:
    """Values [S, m], weights [m] (sum 1) and sizes [m] of the clients that have values."""
    table = np.atleast_2d(np.asarray(values, dtype=np.float64))
    if table.ndim != 2 or table.size == 0:
        raise DataError(f"values must have one row per seed and one column per client; got shape {table.shape}.")
    if isinstance(name, int):
        if not 0 <= name < table.shape[1]:
            raise ConfigError(f"there is no client {name}: there are {table.shape[1]}, counted from 0.")
        present = np.arange(table.shape[1]) == name
    else:
        present = ~np.isnan(table).all(axis=0)
    kept = matrix("values", table[:, present])
    p = np.ones(table.shape[1]) if weights is None else vector("weights", weights, table.shape[1])
    p = normalized_shares(p[present], kept.shape[1])
    if sizes is None:
        return kept, p, None
    size = vector("sizes", sizes, table.shape[1])[present]
    check_sizes("sizes", size)
    if kept.min() < 0 or kept.max() > 1:
        raise DataError("with sizes, values must be accuracies from 0 to 1. Leave sizes out for anything else.")
    return kept, p, size


def _mean_answers(every: Answers, name: Statistic, weights: npt.ArrayLike | None) -> Answers:
    """What answers add to the (weighted) mean of all clients: how much seeds agree is known best from all of them."""
    sizes = every.sizes
    here = sizes > 0
    p = np.ones_like(sizes) if weights is None or name != "weighted_mean" else vector("weights", weights, sizes.size)
    return Answers(lambda: every.values, sizes[here]).weighted(p[here] / p[here].sum())


def _looked_at(name: str, accuracy: FloatArray, higher_is_better: bool) -> npt.NDArray[np.intp]:
    """The clients that a quantile, or the mean of the worst or best ones, depends on."""
    order = np.argsort(accuracy, kind="stable")
    if name.startswith(("worst", "best")):
        share = float(name.removeprefix("worst").removeprefix("best") or 0) / 100
        count = tail_size(accuracy.size, share) if share else 1
        lowest = name.startswith("worst") == higher_is_better
        return order[:count] if lowest else order[-count:]
    middle = (float(name.removeprefix("quantile") or 50) / 100 if name != "median" else 0.5) * (accuracy.size - 1)
    return order[int(np.floor(middle)) : int(np.ceil(middle)) + 1]


def _by_row(rows: FloatArray, name: Statistic, p: FloatArray, higher_is_better: bool) -> FloatArray:
    return (
        rows[..., 0] if isinstance(name, int) else statistics_of_rows(name, rows, p, higher_is_better=higher_is_better)
    )


def _weights(name: Statistic, p: FloatArray) -> FloatArray:
    """Of the clients in a statistic that is a weighted mean, or a weighted product."""
    return p if name in ("weighted_mean", "weighted_nash_welfare") else np.full(p.size, 1 / p.size)


def _step(name: Statistic, table: FloatArray, size: FloatArray, p: FloatArray, higher_is_better: bool) -> float:
    """How far a statistic goes when one test example turns: on average over the clients that it looks at."""
    accuracy = table.mean(axis=0)
    if isinstance(name, str) and name.startswith(("worst", "best", "quantile", "median")):
        clients = _looked_at(name, accuracy, higher_is_better)
        return float((1 / size[clients]).mean()) / clients.size
    if isinstance(name, str) and name.endswith("nash_welfare"):
        weights = _weights(name, p)
        least = np.maximum(accuracy, 1 / size)
        return _welfare(accuracy, size, weights) * float((weights / (size * least)).mean())
    return float((_weights(name, p) / size).mean())


def _welfare(accuracy: FloatArray, size: FloatArray, weights: FloatArray) -> float:
    """The Nash welfare, with one right answer at least of every client."""
    return float(np.exp(weights @ np.log(np.maximum(accuracy, 1 / size))))

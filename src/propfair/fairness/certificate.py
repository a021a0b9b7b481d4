r"""Is a model proportionally fair? The certificate answers from client utilities (paper, eq. 3.3 and 5.1).

$$\mathrm{PF}(u; u^*) = \sum_i p_i \frac{u_i - u_i^*}{u_i^*}$$

is the average relative change when clients move from $u^*$ to $u$. A feasible $u^*$ is proportionally fair if no
feasible $u$ makes it positive. Trained models are a finite sample of the feasible set, so a positive value refutes
proportional fairness and a negative one supports it; it can't prove it. PF is linear in u: its maximum over all
mixtures of the models (the convex hull) is its maximum over the models.

The order `alpha` generalises it: $\sum_i p_i (u_i - u_i^*) / (u_i^*)^\alpha \le 0$ certifies alpha-fairness; 0 is
the average, 1 proportional fairness, 2 the harmonic mean (Appendix F).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from propfair.errors import DataError
from propfair.fairness.arrays import FloatArray, Shares, matrix, normalized_shares, vector
from propfair.fairness.evidence import certificate_evidence, certificate_sums, check_alpha, check_positive
from propfair.fairness.intervals import Evidence, Interval
from propfair.fairness.verdict import Verdict, decide


@dataclass(frozen=True, eq=False)
class Certificate:
    """What other models would change for the clients of a reference model u*.

    Attributes:
        names: of the other models, [m].
        values: [m], sum p (u - u*) / u*^alpha for each of them; fractions, so 0.01 is 1 %.
        relative: [m, n], each client's relative change (u - u*) / u*.
        shares: [n], p.
        alpha: the order; 1 is proportional fairness.
    """

    names: tuple[str, ...]
    values: FloatArray
    relative: FloatArray
    shares: FloatArray
    alpha: float

    @property
    def maximum(self) -> float:
        """The largest value over the models, and so over all their mixtures. <= 0: none of them refutes u*."""
        return float(self.values.max())

    @property
    def maximizer(self) -> str:
        """The model that attains the maximum."""
        return self.names[int(self.values.argmax())]

    @property
    def hull_weights(self) -> FloatArray:
        """[m], a mixture of the models that attains the maximum over their convex hull: one of its corners."""
        weights: FloatArray = np.eye(len(self.names))[int(self.values.argmax())]
        return weights

    @property
    def hull_maximum(self) -> float:
        """The largest value over the convex hull of the models: that of `hull_weights`."""
        return float(self.hull_weights @ self.values)

    def as_dict(self) -> dict[str, object]:
        """All of it as plain lists and numbers, for JSON."""
        return {
            "alpha": self.alpha,
            "maximum": self.maximum,
            "maximizer": self.maximizer,
            "values": dict(zip(self.names, self.values.tolist(), strict=True)),
            "relative": dict(zip(self.names, self.relative.tolist(), strict=True)),
            "shares": self.shares.tolist(),
        }

    def verdict(self, tolerance: float = 0.0) -> Verdict:
        """The verdict if the utilities are exact. `decide` takes chance into account.

        >>> certificate({"A": [0.6, 0.5, 0.4]}, [0.5, 0.5, 0.5], [0.5, 0.3, 0.2]).verdict().words
        'refuted by A: it changes the clients by +6.00 % on average (numbers taken as exact)'
        """
        found = {
            name: Evidence(np.array([value]), same=not changes.any())
            for name, value, changes in zip(self.names, self.values, self.relative, strict=True)
        }
        return decide(found, tolerance=tolerance, over="nothing", alpha=self.alpha)


def certificate(
    u: npt.ArrayLike | Mapping[str, npt.ArrayLike],
    u_star: npt.ArrayLike,
    shares: Shares,
    *,
    alpha: float = 1.0,
) -> Certificate:
    """Compare other models' utilities with those of a reference model.

    Args:
        u: the other models: one list of n utilities, a table [m, n], or a mapping from names to lists.
        u_star: [n], the utilities of the model to certify, all > 0. A client with utility 0 is an error: its relative
            change is undefined, and leaving it out would hide the client that is worst off.
        shares: [n], data sizes or shares, from the training sets as in the paper; or "uniform" (Appendix F).
        alpha: order of fairness.

    >>> certificate([0.6, 0.5, 0.4], [0.5, 0.5, 0.5], [0.5, 0.3, 0.2]).values.round(7).tolist()
    [0.06]
    """
    reference = check_positive("u_star", u_star)
    if isinstance(u, Mapping):
        names = tuple(str(name) for name in u)
        table = matrix("u", [vector(f"u[{name!r}]", values, reference.size) for name, values in u.items()])
    else:
        table = matrix("u", u, reference.size)
        names = tuple(f"model {row}" for row in range(len(table)))
    p = normalized_shares(shares, reference.size)
    check_alpha(alpha)
    return Certificate(names, certificate_sums(table, reference, p, alpha), table / reference - 1, p, alpha)


def interval_over_examples(
    correct: npt.ArrayLike,
    correct_star: npt.ArrayLike,
    total: npt.ArrayLike,
    shares: Shares,
    *,
    both: npt.ArrayLike,
    alpha: float = 1.0,
    level: float = 0.95,
) -> Interval:
    """Where the certificate of these models lies on all examples of the clients, not only on those tested.

    Args:
        correct: [n], test examples that the other model gets right.
        correct_star: [n], those that the reference model gets right, all > 0.
        total: [n], test examples.
        shares: as in `certificate`.
        both: [n], examples that both models get right: how much the models agree, as models tested on the same examples
            do.
        alpha: order of fairness.
        level: coverage.
    """
    size = vector("total", total)
    hits, hits_star = vector("correct", correct, size.size), check_positive("correct_star", correct_star, size.size)
    _check_counts("correct", hits, 0 * size, size)
    _check_counts("correct_star", hits_star, 0 * size, size)
    shared = vector("both", both, size.size)
    _check_counts("both", shared, np.maximum(hits + hits_star - size, 0), np.minimum(hits, hits_star))
    found = certificate_evidence(hits / size, hits_star / size, shares, alpha=alpha, total=size, both=both)
    return found.interval("examples", level)


def interval_over_seeds(
    u: npt.ArrayLike, u_star: npt.ArrayLike, shares: Shares, *, alpha: float = 1.0, level: float = 0.95
) -> Interval:
    """Where the mean certificate lies over all seeds, on this test set: Student's interval.

    Args:
        u: [S, n], the other model's utilities, one row per seed, at least two.
        u_star: [S, n], the reference model's under the same seeds, all > 0.
        shares: as in `certificate`.
        alpha: order of fairness.
        level: coverage.
    """
    return certificate_evidence(u, u_star, shares, alpha=alpha).interval("seeds", level)


def interval_over_both(
    u: npt.ArrayLike,
    u_star: npt.ArrayLike,
    total: npt.ArrayLike,
    shares: Shares,
    *,
    answers: tuple[npt.ArrayLike, npt.ArrayLike],
    alpha: float = 1.0,
    level: float = 0.95,
) -> Interval:
    """Where the mean certificate lies over all seeds, on all examples of the clients.

    Args:
        u: [S, n], the other model's accuracies, one row per seed, at least two.
        u_star: [S, n], the reference model's under the same seeds, all > 0.
        total: [n], test examples.
        shares: as in `certificate`.
        answers: of the other model and of the reference, [S, N] each: which examples they get right, those of the first
            client first.
        alpha: order of fairness.
        level: coverage.
    """
    return certificate_evidence(u, u_star, shares, alpha=alpha, total=total, answers=answers).interval("both", level)


def _check_counts(name: str, counts: FloatArray, low: FloatArray, high: FloatArray) -> None:
    wrong = (counts != np.round(counts)) | (counts < low) | (counts > high)
    if wrong.any():
        client = int(np.flatnonzero(wrong)[0])
        raise DataError(
            f"{name} must be whole numbers from {low[client]:g} to {high[client]:g} for client {client}; "
            f"got {counts[client]:g}."
        )

r"""The one certificate over runs: is the model of a group proportionally fair against those of other groups?

Paper, eq. 5.1 and figures 2 to 4. Seeds of one setting are one group. Two groups are compared seed by seed, over the
seeds that both have; with one run each, run by run. What is shown is a mean over these pairs: of the sums, and of each
client's relative change. Eq. 5.1 is about two models; a mean of utilities over seeds belongs to no model. And the
sum is linear in the relative changes, so that the means of the clients' changes, weighted by share, add up to the mean
of the sums: the bars of a figure belong to the number above it. A relative change of mean utilities would not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from propfair.errors import ConfigError, DataError
from propfair.fairness.arrays import FloatArray
from propfair.fairness.certificate import Certificate, certificate
from propfair.fairness.evidence import certificate_evidence
from propfair.fairness.intervals import Evidence, Interval, Over
from propfair.fairness.joining import Joining
from propfair.fairness.verdict import TOLERANCE, Verdict, decide
from propfair.federation.federation import Federation, Split
from propfair.runs.again import hits
from propfair.runs.cautions import unsettled
from propfair.runs.grouping import Group, check_same_clients, group_runs, matched_runs, setting_of
from propfair.runs.measures import Measure
from propfair.runs.run import Run
from propfair.runs.standing import alone_among, answers_to, gains, is_alone

Weights = Literal["samples", "uniform"]


@dataclass(frozen=True)
class Utility:
    """What a client gets from a model: its accuracy, another metric, or M minus its loss or another error.

    A utility is positive, and better when it is larger. A metric of that kind is one as it stands; an error becomes one
    as the loss does in the paper, by its distance from M, the error at which a client gets nothing.

    Args:
        split: where it is measured.
        M: None for metrics that are better when larger.
        metric: "": accuracy, or the loss if there is an M.
    """

    split: Split = "test"
    M: float | None = None
    metric: str = ""

    def __post_init__(self) -> None:
        if self.measure.higher_is_better == (self.M is not None):
            way_out = "leave M out" if self.M is not None else "give M, the error at which a client gets nothing"
            raise ConfigError(f"{self.measure.metric} can't be a utility like this: {way_out}")

    @property
    def measure(self) -> Measure:
        """What it is computed from."""
        return Measure(self.split, self.metric or ("accuracy" if self.M is None else "loss"))

    def of(self, run: Run) -> FloatArray:
        """[n]; nan for clients without examples in the split."""
        values = run.values(self.measure)
        return values if self.M is None else self.M - values

    def __str__(self) -> str:
        return self.measure.label if self.M is None else f"{self.M:g} - {self.measure.label}"


@dataclass(frozen=True, eq=False)
class Pair:
    """What changes for the clients of a reference group when they are served by another.

    Attributes:
        reference, other: the groups.
        runs: of both, for each seed that is compared.
        u_star, u: [S, n], utilities of the clients under the runs.
        terms: what is common to all pairs.
    """

    reference: Group
    other: Group
    runs: tuple[tuple[Run, Run], ...]
    u_star: FloatArray
    u: FloatArray
    terms: "Terms"

    @cached_property
    def _certificates(self) -> list[Certificate]:
        shares, alpha = self.terms.shares, self.terms.alpha
        return [certificate(u, u_star, shares, alpha=alpha) for u, u_star in zip(self.u, self.u_star, strict=True)]

    @property
    def value(self) -> float:
        """The mean over seeds of sum p (u - u*) / u*^alpha."""
        return float(np.mean([one.values[0] for one in self._certificates]))

    @property
    def relative(self) -> FloatArray:
        """[n], the mean over seeds of each client's relative change (u - u*) / u*."""
        mean: FloatArray = np.mean([one.relative[0] for one in self._certificates], axis=0)
        return mean

    @cached_property
    def evidence(self) -> Evidence:
        """All that is known of the value: under each seed, and for accuracies the noise of the test examples."""
        terms = self.terms
        total = answers = None
        if terms.utility.M is None:
            total = np.asarray(self.runs[0][0].clients.sizes[terms.utility.split], dtype=np.float64)[terms.present]
            answers = self._answers()
        return certificate_evidence(self.u, self.u_star, terms.shares, alpha=terms.alpha, total=total, answers=answers)

    def _answers(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]] | None:
        """[S, N] of the other and of the reference: which examples of the clients that take part they get right."""
        terms = self.terms
        if terms.paired is not None:
            other, star = (np.stack([terms.hits(pair[side]) for pair in self.runs]) for side in (1, 0))
            here = np.repeat(terms.present, terms.paired.split(terms.utility.split).lengths.numpy())
            return other[:, here], star[:, here]
        kept = [answers_to([pair[side] for pair in self.runs], terms.utility.measure, terms.present) for side in (1, 0)]
        return None if kept[0] is None or kept[1] is None else (kept[0], kept[1])


@dataclass(frozen=True, eq=False)
class Terms:
    """On what terms groups are compared, the same for all pairs.

    Attributes:
        utility: what clients get.
        present: [n], the clients that every run measured; only they take part.
        shares: of those that are present, how they count in the sum.
        alpha: the order of fairness; 1 is proportional fairness.
        level: coverage of the intervals of one reference, all at once.
        tolerance: an average change up to this counts as none.
        over: what intervals are drawn over; None: seeds where there are several, else examples.
        paired: the clients' data, to run models on the same examples again.
    """

    utility: Utility
    present: NDArray[np.bool_]
    shares: FloatArray
    alpha: float = 1.0
    level: float = 0.95
    tolerance: float = TOLERANCE
    over: Over | None = None
    paired: Federation | None = None

    def hits(self, run: Run) -> NDArray[np.bool_]:
        """[N], which examples the model of a run gets right; each model is run once."""
        if self.paired is None:
            raise ConfigError("models can be run again only on the clients' data")
        if id(run) not in self._hits:
            self._hits[id(run)] = hits(run, self.paired, self.utility.split)
        return self._hits[id(run)]

    @cached_property
    def _hits(self) -> dict[int, NDArray[np.bool_]]:
        return {}


@dataclass(frozen=True, eq=False)
class Pairs:
    """All pairs of groups of runs on the same clients, each computed when it is asked for."""

    groups: tuple[Group, ...]
    terms: Terms

    @classmethod
    def of(
        cls, groups: Sequence[Group], *, utility: Utility = Utility(), weights: Weights = "samples",  # noqa: B008
        alpha: float = 1.0, level: float = 0.95, tolerance: float = TOLERANCE, over: Over | None = None,
        paired: Federation | None = None,
    ) -> "Pairs":  # fmt: skip
        """For the arguments see `certify`."""
        runs = [run for group in groups for run in group.runs]
        check_same_clients(runs)
        present = np.asarray(np.isfinite([utility.of(run) for run in runs]).all(axis=0))
        if not present.any():
            there = dict.fromkeys(measure.key for run in runs for measure in run.measures)
            raise DataError(
                f"no client has a {utility} under every run; there is: {', '.join(there)}. The utility M - loss needs "
                "no accuracy: choose an M above the losses, --M 5, say."
            )
        shares = runs[0].shares[present] if weights == "samples" else np.ones(int(present.sum()))
        terms = Terms(utility, present, shares / shares.sum(), alpha, level, tolerance, over, paired)
        return cls(tuple(groups), terms)

    @property
    def clients(self) -> tuple[str, ...]:
        """The names of the clients that take part."""
        names = self.groups[0].runs[0].clients.names
        return tuple(name for name, here in zip(names, self.terms.present, strict=True) if here)

    @property
    def num_excluded(self) -> int:
        """Clients without a utility under some run."""
        return int((~self.terms.present).sum())

    def pair(self, reference: int, other: int) -> Pair:
        """The groups at two positions; an error if they share no seed."""
        if (reference, other) not in self._found:
            self._found[reference, other] = self._pair(self.groups[reference], self.groups[other])
        return self._found[reference, other]

    def share_seeds(self, reference: int, other: int) -> bool:
        """The two groups can be compared."""
        return bool(matched_runs(self.groups[reference], self.groups[other]))

    def nothing_for(self, reference: int) -> str | None:
        """The name of a client that gets nothing from some run of a group: relative changes from it are undefined."""
        rows = [self.terms.utility.of(run)[self.terms.present] for run in self.groups[reference].runs]
        zero = (np.stack(rows) <= 0).any(axis=0)
        return self.clients[int(zero.argmax())] if zero.any() else None

    def against(self, reference: int, others: Sequence[int]) -> Certificate:
        """The certificate of one group against others: means over seeds."""
        pairs = [self.pair(reference, other) for other in others]
        return Certificate(
            names=tuple(pair.other.label for pair in pairs),
            values=np.array([pair.value for pair in pairs]),
            relative=np.stack([pair.relative for pair in pairs]),
            shares=self.terms.shares,
            alpha=self.terms.alpha,
        )

    def verdict(self, reference: int, others: Sequence[int]) -> Verdict:
        """The verdict on one group against others, with the intervals of all these comparisons at once."""
        found = {self.groups[other].label: self.pair(reference, other).evidence for other in others}
        terms = self.terms
        return decide(found, tolerance=terms.tolerance, level=terms.level, over=terms.over, alpha=terms.alpha)

    @cached_property
    def _found(self) -> dict[tuple[int, int], Pair]:
        return {}

    def _pair(self, reference: Group, other: Group) -> Pair:
        runs = matched_runs(reference, other)
        if not runs:
            raise ConfigError(
                f"{reference.label} and {other.label} have no seed in common: {sorted(reference.by_seed)} and "
                f"{sorted(other.by_seed)}. Compare runs with the same seeds."
            )
        utility, present = self.terms.utility, self.terms.present
        u_star, u = (np.stack([utility.of(pair[side])[present] for pair in runs]) for side in (0, 1))
        return Pair(reference, other, tuple(runs), u_star, u, self.terms)


@dataclass(frozen=True, eq=False)
class Certified:
    """The certificate of a group against others, on the same clients.

    Attributes:
        reference: the group to certify.
        others: the groups it was compared with.
        utility: what clients get.
        certificate: the sums and each client's relative change; means over seeds.
        verdict: on the reference, with the intervals of the sums.
        clients: the names of the clients that took part.
        num_excluded: clients without examples in the split.
        joining: what the clients of the reference have over their local-only models; None if those are not among the
            others.
    """

    reference: Group
    others: tuple[Group, ...]
    utility: Utility
    certificate: Certificate
    verdict: Verdict
    clients: tuple[str, ...]
    num_excluded: int
    joining: Joining | None = None

    @property
    def intervals(self) -> tuple[Interval | None, ...]:
        """Of the sums, all at once; None where there is one seed and the utility is no accuracy."""
        return tuple(self.verdict.intervals[group.label] for group in self.others)

    @property
    def unsettled(self) -> list[str]:
        """What is not settled about the models, in sentences."""
        return unsettled([self.reference, *self.others])

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON values."""
        found = self.certificate
        return {
            "reference": self.reference.label,
            "runs": [run.where for run in self.reference.runs],
            "utility": str(self.utility),
            "alpha": found.alpha,
            "verdict": self.verdict.words,
            "decision": self.verdict.as_dict(),
            "unsettled": self.unsettled,
            "num_excluded": self.num_excluded,
            "joining": None if self.joining is None else self.joining.as_dict(),
            "clients": list(self.clients),
            "shares": found.shares.tolist(),
            "against": [
                {
                    "model": group.label,
                    "runs": [run.where for run in group.runs],
                    "value": float(value),
                    "interval": None if interval is None else [interval.low, interval.high],
                    "interval_over": None if interval is None else interval.over,
                    "level": None if interval is None else interval.level,
                    "relative": changes.tolist(),
                }
                for group, value, interval, changes in zip(
                    self.others, found.values, self.intervals, found.relative, strict=True
                )
            ],
        }


def certify(
    runs: Sequence[Run],
    others: Sequence[Run],
    *,
    utility: Utility = Utility(),  # noqa: B008 (frozen)
    weights: Weights = "samples",
    alpha: float = 1.0,
    level: float = 0.95,
    tolerance: float = TOLERANCE,
    over: Over | None = None,
    paired: Federation | None = None,
) -> Certified:
    """Compare the model of `runs`, one or more seeds of it, with those of `others`.

    Args:
        runs: the model to certify; `others` of the same setting join them.
        others: the models to compare it with.
        utility: what clients get.
        weights: of the clients in the sum: their data, as in eq. 5.1, or all the same, as in Appendix F.
        alpha: the order of fairness; 1 is proportional fairness.
        level: coverage of the intervals, all at once.
        tolerance: an average change up to this counts as none; 0.01 is 1 %.
        over: what intervals are drawn over: "seeds", "examples" or "both"; by default seeds where there are several,
            else examples.
        paired: the clients' data, to run the models on the same test examples again, for runs that kept no answers. How
            much models are right and wrong together decides how wide intervals over examples are.
    """
    check_same_clients([*runs, *others])
    groups = group_runs([*runs, *others])
    if len({setting_of(run) for run in runs}) > 1:
        raise ConfigError("the runs to certify must differ in nothing but the seed")
    if len(groups) < 2:
        raise ConfigError("there is nothing to certify against: give the folders of other runs on the same clients")
    pairs = Pairs.of(
        groups, utility=utility, weights=weights, alpha=alpha, level=level, tolerance=tolerance, over=over,
        paired=paired,
    )  # fmt: skip
    nobody = pairs.nothing_for(0)
    if nobody is not None:
        raise DataError(
            f"the {utility} of the model to certify must be > 0 for every client, but {groups[0].label} leaves client "
            f"{nobody} at 0 or below, and a relative change from there has no value. Certify another model against "
            "this one, or use the utility M - loss with --M above the largest loss."
        )
    rest = range(1, len(groups))
    alone = alone_among(groups[1:])
    joined = alone is not None and not is_alone(groups[0].runs[0]) and matched_runs(groups[0], alone)
    return Certified(
        reference=groups[0],
        others=tuple(groups[1:]),
        utility=utility,
        certificate=pairs.against(0, rest),
        verdict=pairs.verdict(0, rest),
        clients=pairs.clients,
        num_excluded=pairs.num_excluded,
        joining=gains(groups[0], alone, utility.measure, level=level, over=over) if alone and joined else None,
    )

r"""Is the model of a run proportionally fair against those of other runs? Paper, eq. 5.1 and figures 2 to 4.

Runs that differ in nothing but the seed are one model with several seeds. Values are then means over the seeds that
both models have, with intervals over seeds; with one seed each, intervals are over test examples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from propfair.core.client import cross_entropy
from propfair.core.evaluation import chunks, measure
from propfair.core.params import FlatModel
from propfair.errors import ConfigError, DataError
from propfair.fairness.arrays import FloatArray
from propfair.fairness.certificate import (
    Certificate,
    Interval,
    certificate,
    interval_over_examples,
    interval_over_seeds,
)
from propfair.federation.federation import Federation, Split
from propfair.runs.config import make_config
from propfair.runs.folder import RunFolder
from propfair.runs.run import build_model
from propfair.runs.saved import SavedRun


@dataclass(frozen=True)
class Utility:
    """What a client gets from a model: its accuracy, or M minus its loss.

    Args:
        split: where it is measured.
        M: None for accuracies.
    """

    split: Split = "test"
    M: float | None = None

    def of(self, run: SavedRun) -> FloatArray:
        """[n]; nan for clients without examples in the split."""
        if self.M is None:
            return run.accuracy(self.split)
        losses: FloatArray = self.M - run.evaluation(self.split).loss.numpy()
        return losses

    def __str__(self) -> str:
        return f"{self.split} accuracy" if self.M is None else f"{self.M:g} - {self.split} loss"


@dataclass(frozen=True)
class Model:
    """Runs that differ in nothing but the seed."""

    label: str
    by_seed: dict[int, SavedRun]

    def paired_with(self, other: "Model") -> list[tuple[SavedRun, SavedRun]]:
        """(own run, other's run) for each seed that both have; one pair if each has only one seed."""
        common = [seed for seed in self.by_seed if seed in other.by_seed]
        if not common and len(self.by_seed) == len(other.by_seed) == 1:
            return list(zip(self.by_seed.values(), other.by_seed.values(), strict=True))
        if not common:
            raise ConfigError(
                f"{self.label} and {other.label} have no seed in common: {sorted(self.by_seed)} and "
                f"{sorted(other.by_seed)}. Compare runs with the same seeds."
            )
        return [(self.by_seed[seed], other.by_seed[seed]) for seed in common]


@dataclass(frozen=True)
class Certified:
    """The certificate of a model against others, on the same clients.

    Attributes:
        reference: the model to certify.
        others: the models it was compared with.
        utility: what clients get.
        certificate: the sums and each client's relative change; means over seeds.
        intervals: of the sums; None where there is one seed and the utility is no accuracy.
        clients: the names of the clients that took part.
        num_excluded: clients without examples in the split.
    """

    reference: Model
    others: tuple[Model, ...]
    utility: Utility
    certificate: Certificate
    intervals: tuple[Interval | None, ...]
    clients: tuple[str, ...]
    num_excluded: int

    @cached_property
    def verdict(self) -> str:
        """The result in a sentence."""
        return self.certificate.verdict(interval=self.intervals[int(self.certificate.values.argmax())])

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON values."""
        found = self.certificate
        return {
            "reference": self.reference.label,
            "runs": [str(run.path) for run in self.reference.by_seed.values()],
            "utility": str(self.utility),
            "alpha": found.alpha,
            "verdict": self.verdict,
            "num_excluded": self.num_excluded,
            "clients": list(self.clients),
            "shares": found.shares.tolist(),
            "against": [
                {
                    "model": model.label,
                    "runs": [str(run.path) for run in model.by_seed.values()],
                    "value": float(value),
                    "interval": None if interval is None else [interval.low, interval.high],
                    "interval_over": None if interval is None else interval.over,
                    "level": None if interval is None else interval.level,
                    "relative": changes.tolist(),
                }
                for model, value, interval, changes in zip(
                    self.others, found.values, self.intervals, found.relative, strict=True
                )
            ],
        }


def certify(
    runs: Sequence[SavedRun],
    others: Sequence[SavedRun],
    *,
    utility: Utility = Utility(),  # noqa: B008 (frozen)
    weights: Literal["samples", "uniform"] = "samples",
    alpha: float = 1.0,
    level: float = 0.95,
    paired: Federation | None = None,
) -> Certified:
    """Compare the model of `runs`, one or more seeds of it, with those of `others`.

    Args:
        runs: the model to certify; `others` that differ only in the seed join them.
        others: the models to compare it with.
        utility: what clients get.
        weights: of the clients in the sum: their data, as in eq. 5.1, or all the same, as in Appendix F.
        alpha: the order of fairness; 1 is proportional fairness.
        level: coverage of the intervals.
        paired: the clients' data, to run the models on the same test examples again. Intervals over examples then take
            into account that both models are right and wrong together, and are narrower.
    """
    check_same_clients([*runs, *others])
    reference, *rest = group([*runs, *others])
    if len({run.identity for run in runs}) > 1:
        raise ConfigError("the runs to certify must differ in nothing but the seed")
    if not rest:
        raise ConfigError("there is nothing to certify against: give the folders of other runs on the same clients")
    present = np.asarray(np.isfinite([utility.of(run) for run in [*runs, *others]]).all(axis=0))
    if not present.any():
        raise DataError(f"no client has a {utility} under every run")
    shares = runs[0].shares[present] if weights == "samples" else np.ones(int(present.sum()))
    values, relative = [], []
    intervals: list[Interval | None] = []
    for other in rest:
        pairs = reference.paired_with(other)
        u_star = np.stack([utility.of(own)[present] for own, _ in pairs])
        u = np.stack([utility.of(run)[present] for _, run in pairs])
        by_seed = [certificate({other.label: u[s]}, u_star[s], shares, alpha=alpha) for s in range(len(pairs))]
        values.append(np.mean([one.values[0] for one in by_seed]))
        relative.append(np.mean([one.relative[0] for one in by_seed], axis=0))
        if len(pairs) > 1:
            intervals.append(interval_over_seeds(u, u_star, shares, alpha=alpha, level=level))
        elif utility.M is None:
            intervals.append(_over_examples(*pairs[0], utility.split, present, shares, alpha, level, paired))
        else:
            intervals.append(None)
    names = np.array(runs[0].clients["names"])[present]
    return Certified(
        reference=reference,
        others=tuple(rest),
        utility=utility,
        certificate=Certificate(
            tuple(other.label for other in rest), np.array(values), np.stack(relative), shares / shares.sum(), alpha
        ),
        intervals=tuple(intervals),
        clients=tuple(names.tolist()),
        num_excluded=int((~present).sum()),
    )


def check_same_clients(runs: Sequence[SavedRun]) -> None:
    """Runs can be compared client by client only if they share data, partition and split."""
    for run in runs[1:]:
        if run.fingerprint != runs[0].fingerprint:
            raise DataError(
                f"{runs[0].path} and {run.path} do not have the same clients: the fingerprints of their data and "
                f"partition are {runs[0].fingerprint} and {run.fingerprint}. Compare runs with the same [data] section."
            )


def group(runs: Sequence[SavedRun]) -> list[Model]:
    """One model for all runs that differ in nothing but the seed, in the order of first appearance."""
    models: dict[tuple[str, int], Model] = {}
    for run in runs:
        copy = 0  # the same seed twice is no second seed
        while run.seed in models.get((run.identity, copy), Model("", {})).by_seed:
            copy += 1
        models.setdefault((run.identity, copy), Model(run.label, {})).by_seed[run.seed] = run
    labels = [model.label for model in models.values()]
    return [
        model if labels.count(model.label) == 1 else Model(f"{model.label} ({_folder(model)})", model.by_seed)
        for model in models.values()
    ]


def hits(run: SavedRun, federation: Federation, split: Split) -> NDArray[np.bool_]:
    """Whether the model of a run gets each example of the split right, clients one after the other, [sum of sizes]."""
    if run.fingerprint != federation.fingerprint:
        raise DataError(f"the data of {run.path} have changed since it was run")
    config = make_config(run.config)
    if config.make_algorithm().personal is not None:
        raise ConfigError(f"{run.path} has a model for each client, and they are not stored: leave --paired out")
    model = FlatModel(build_model(config, federation))
    model.load(*model.vectors(RunFolder.open(run.path).model()))
    batches = chunks(federation.split(split), range(federation.num_clients))
    correct = [measure(model, federation.examples, cross_entropy, batch)[1] for batch in batches]
    found: NDArray[np.bool_] = torch.cat(correct).numpy() > 0
    return found


def _over_examples(
    star: SavedRun, run: SavedRun, split: Split, present: NDArray[np.bool_], shares: FloatArray, alpha: float,
    level: float, federation: Federation | None,
) -> Interval:  # fmt: skip
    total = np.asarray(star.clients["sizes"][split], dtype=np.float64)
    both = None
    if federation is not None:
        together = hits(star, federation, split) & hits(run, federation, split)
        owner = np.repeat(np.arange(len(total)), total.astype(np.int64))
        both = np.bincount(owner, weights=together, minlength=len(total))[present]
    correct, correct_star = (np.round(one.accuracy(split) * total)[present] for one in (run, star))
    return interval_over_examples(correct, correct_star, total[present], shares, both=both, alpha=alpha, level=level)


def _folder(model: Model) -> str:
    return next(iter(model.by_seed.values())).path.name

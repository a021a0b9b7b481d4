"""`python -m benchmarks.coverage`: how often intervals cover what they are about, and the table in docs/statistics.md.

Federations are made up (`benchmarks.made_up`), so that the truth is known; intervals are those of `propfair.fairness`,
from the same tables as a user has.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.harness import ROOT
from benchmarks.made_up import Floats, Regime, Truth, federations, regimes
from propfair.fairness import Evidence, certificate_evidence, difference_evidence, statistic_evidence
from propfair.fairness.intervals import Over
from propfair.fairness.noise import Answers
from propfair.fairness.statistics import statistics_of_rows

PAGE = ROOT / "docs" / "statistics.md"
COLUMNS: tuple[tuple[Over, tuple[int, ...]], ...] = (
    ("seeds", (2, 3, 5, 10)),
    ("both", (2, 3, 5, 10)),
    ("examples", (1,)),
)
LEVEL = 0.95
TOLERATED = 0.02
FEW = "°"  # covers too often, and the number has too few values for anything else
MARKS = ("<!-- coverage: begin -->", "<!-- coverage: end -->")


@dataclass(frozen=True, eq=False)
class Case:
    """What a user has: accuracies of A and B [2, S, n], sizes [n], and answers [2, S, N]."""

    accuracy: Floats
    sizes: Floats
    right: np.ndarray

    @cached_property
    def answers(self) -> tuple[Answers, Answers]:
        """Of A and of B."""
        return Answers.of(self.right[0], self.sizes), Answers.of(self.right[1], self.sizes)

    def statistic(self, side: int, name: str | int) -> Evidence:
        """The evidence on a statistic of A (0) or B (1)."""
        if (side, name) not in self._found:
            self._found[side, name] = statistic_evidence(
                self.accuracy[side], name, sizes=self.sizes, answers=self.answers[side]
            )
        return self._found[side, name]

    @cached_property
    def _found(self) -> dict[tuple[int, str | int], Evidence]:
        return {}


@dataclass(frozen=True)
class Number:
    """Something an interval is about.

    Attributes:
        name: in the table.
        evidence: from what a user has; None if the number has no value.
        values: from accuracies [2, P, n] of A and B, [P]; nan where it has no value.
        of_population: its truth is the value on all examples; else it is the mean over test sets of this size.
    """

    name: str
    evidence: Callable[[Case], Evidence | None]
    values: Callable[[Floats], Floats]
    of_population: bool = False

    def truth(self, truth: Truth) -> float:
        """What its intervals should cover."""
        values = self.values(truth.whole if self.of_population else truth.tests)
        return float(np.nanmean(values)) if np.isfinite(values).any() else math.nan

    def coarseness(self, truth: Truth, seeds: int) -> float:
        """How much few values matter: a chance that no interval can do anything about.

        With several seeds, that all of them give the same number, so that nothing is seen of their spread. With one, by
        how much the narrowest interval of fixed width that covers as often as the level covers more often.
        """
        values = self.values(truth.tests)
        values = values[np.isfinite(values)].round(9)
        if not values.size:
            return math.nan
        if seeds > 1:
            return float(((np.unique(values, return_counts=True)[1] / values.size) ** seeds).sum())
        distances = np.abs(values - self.truth(truth))
        return float((distances <= np.quantile(distances, LEVEL, method="higher") + 1e-9).mean()) - LEVEL


def _statistic(label: str, name: str | int, of_population: bool = False) -> Number:
    return Number(label, lambda case: case.statistic(0, name), lambda both: _rows(name, both[0]), of_population)


def _difference(label: str, name: str | int, of_population: bool = False) -> Number:
    def evidence(case: Case) -> Evidence:
        return difference_evidence(case.statistic(1, name), case.statistic(0, name))

    return Number(label, evidence, lambda both: _rows(name, both[1]) - _rows(name, both[0]), of_population)


def _certificate(label: str) -> Number:
    def evidence(case: Case) -> Evidence | None:
        reference, other = case.accuracy
        if (reference <= 0).any():
            return None
        answers = (case.answers[1], case.answers[0])
        return certificate_evidence(other, reference, "uniform", total=case.sizes, answers=answers)

    def values(both: Floats) -> Floats:
        reference = np.where((both[0] > 0).all(axis=-1, keepdims=True), both[0], np.nan)
        changes: Floats = (both[1] / reference - 1).mean(axis=-1)
        return changes

    return Number(label, evidence, values, of_population=True)


NUMBERS = (
    _statistic("mean", "mean", of_population=True),
    _statistic("largest client", 9, of_population=True),
    _statistic("smallest client", 0, of_population=True),
    _statistic("worst 10 %", "worst10"),
    _statistic("worst 30 %", "worst30"),
    _statistic("median", "median"),
    _statistic("spread (std)", "std"),
    _statistic("Nash welfare", "nash_welfare", of_population=True),
    _difference("difference of means", "mean", of_population=True),
    _difference("difference, largest client", 9, of_population=True),
    _difference("difference of worst 10 %", "worst10"),
    _difference("difference of spreads", "std"),
    _difference("difference of Nash welfare", "nash_welfare", of_population=True),
    _certificate("certificate"),
)


class Share(NamedTuple):
    """How many of the intervals that were given cover the truth, and how many were given of those asked for.

    `coarse` is the mean of `Number.coarseness` over federations.
    """

    covered: int
    given: int
    asked: int
    coarse: float = 0.0

    @property
    def coverage(self) -> float:
        """The share; nan if fewer than one in twenty were given."""
        return self.covered / self.given if 20 * self.given >= self.asked and self.given else math.nan

    def __str__(self) -> str:
        if math.isnan(self.coverage):
            return "-"
        text = f"{100 * self.coverage:.1f}"
        if abs(float(text) - 100 * LEVEL) > 100 * TOLERATED:  # as printed
            above = f"{text}{FEW}" if self.coarse > TOLERATED else f"*{text}*"
            text = f"**{text}**" if self.coverage < LEVEL else above
        part = 100 * self.given / self.asked
        return text if part >= 99.5 else f"{text} ({part:.0f})"


def coverage(
    regime: Regime, numbers: Sequence[Number], over: Over, seeds: Sequence[int], replicates: int, per_federation: int,
    seed: int,
) -> list[list[Share]]:  # fmt: skip
    """For each number of seeds and each number: how often intervals cover the truth."""
    counts = np.zeros((len(seeds), len(numbers), 3), dtype=np.int64)
    coarse: list[list[list[float]]] = [[[] for _ in numbers] for _ in seeds]
    for federation, rng in federations(regime, math.ceil(replicates / per_federation), seed):
        drawn, truth = federation.scenes(over, seeds, per_federation, rng)
        truths = [number.truth(truth) for number in numbers]
        for size, found in zip(seeds, coarse, strict=True):
            for several, number in zip(found, numbers, strict=True):
                several.append(number.coarseness(truth, size))
        for column, answered in zip(counts, drawn, strict=True):
            for row in range(per_federation):
                case = Case(answered.accuracies[:, row], regime.sizes.astype(np.float64), answered.right[:, row])
                for count, number, target in zip(column, numbers, truths, strict=True):
                    count += _tried(number.evidence(case), over, target)
    return [
        [
            Share(int(covered), int(given), int(asked), float(np.mean(several)))
            for (covered, given, asked), several in zip(column, found, strict=True)
        ]
        for column, found in zip(counts, coarse, strict=True)
    ]


def _tried(evidence: Evidence | None, over: Over, truth: float) -> tuple[int, int, int]:
    if evidence is None or evidence.why_not(over):
        return 0, 0, 1
    interval = evidence.interval(over, LEVEL)
    return int(interval.low - 1e-12 <= truth <= interval.high + 1e-12), 1, 1


def _rows(name: str | int, accuracies: Floats) -> Floats:
    n = accuracies.shape[-1]
    return accuracies[:, name] if isinstance(name, int) else statistics_of_rows(name, accuracies, np.full(n, 1 / n))


def table(replicates: int, per_federation: int, seed: int, names: Sequence[str]) -> list[str]:
    """The lines of the table, in Markdown."""
    heads = [over if seeds == (1,) else f"{over}, {number}" for over, seeds in COLUMNS for number in seeds]
    lines = [f"| | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    print("\n".join(lines), flush=True)
    for regime in regimes():
        if names and regime.name not in names:
            continue
        columns: list[list[Share]] = []
        for over, seeds in COLUMNS:
            columns += coverage(regime, NUMBERS, over, seeds, replicates, per_federation, seed)
        own = [f"| **{regime.name}** |" + " |" * len(heads)]
        own += [
            f"| {number.name} | {' | '.join(map(str, shares))} |"
            for number, *shares in zip(NUMBERS, *columns, strict=True)
        ]
        print("\n".join(own), flush=True)
        lines += own
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__)
    parser.add_argument("--replicates", type=int, default=2000, help="intervals for each number of the table")
    parser.add_argument("--per-federation", type=int, default=10, help="of these, how many on each made-up federation")
    parser.add_argument("--seed", type=int, default=20261117, help="of the simulation")
    parser.add_argument("--regime", action="append", default=[], help="only this one, and write nothing")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page whose table is replaced")
    parser.add_argument("--dry-run", action="store_true", help="print the table, write nothing")
    given = parser.parse_args()
    lines = table(given.replicates, given.per_federation, given.seed, given.regime)
    if not given.dry_run and not given.regime:
        before, _, rest = given.page.read_text(encoding="utf-8").partition(MARKS[0])
        after = rest.partition(MARKS[1])[2]
        text = "\n".join([MARKS[0], "", *lines, "", MARKS[1]])
        given.page.write_text(before + text + after, encoding="utf-8")


if __name__ == "__main__":
    main()

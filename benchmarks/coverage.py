"""`python -m benchmarks.coverage`: how often intervals cover what they are about, and the table in docs/statistics.md.

A made-up federation whose truth is known. Client i's model under seed s gets example j right with probability
expit(a_i + b_s + c_si + k e_ij): the level of the client, what the seed does to all clients and to this one, and how
hard the example is, for all models alike. Two algorithms, B a little better for some clients and worse for others, are
tested on the same examples. Intervals are those of `propfair.fairness`, from the same tables as a user has.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.harness import ROOT
from propfair.fairness import Evidence, certificate_evidence, difference_evidence, statistic_evidence
from propfair.fairness.intervals import Over
from propfair.fairness.noise import Answers
from propfair.fairness.statistics import statistics_of_rows

PAGE = ROOT / "docs" / "statistics.md"
SEEDS = (2, 3, 5, 10)
LEVEL = 0.95
FIXED = 10  # test sets (or models) that the intervals over seeds (or examples) are averaged over
MARKS = ("<!-- coverage: begin -->", "<!-- coverage: end -->")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class World:
    """Clients, two algorithms, and what chance does to them.

    Attributes:
        name: in the table.
        levels: [n], log-odds of a right answer to an example of average difficulty, for algorithm A.
        gain: [n], what B adds to it.
        sizes: [n], test examples.
        seed_std, client_std: of the log-odds over seeds, for all clients together and for each.
        difficulty: standard deviation of the log-odds over examples.
    """

    name: str
    levels: Floats
    gain: Floats
    sizes: npt.NDArray[np.int64]
    seed_std: float = 0.2
    client_std: float = 0.3
    difficulty: float = 3.0

    def draw(self, rng: np.random.Generator, seeds: int, sets: int, fixed: bool, times: int = 1) -> "Answered":
        """Draw test sets and, for each, models of so many seeds.

        Args:
            rng: of the draws.
            seeds: S.
            sets: R test sets.
            fixed: the models do not change from test set to test set.
            times: so many times the test examples.
        """
        shape = (1 if fixed else sets, seeds, self.levels.size)
        shift = self.seed_std * rng.standard_normal((*shape[:2], 1)) + self.client_std * rng.standard_normal(shape)
        shift_b = shift / 2 + self.client_std * rng.standard_normal(shape)  # seeds are shared: same start, same order
        sizes = times * self.sizes
        owner = np.repeat(np.arange(sizes.size), sizes)
        hard = self.difficulty * rng.standard_normal((sets, 1, owner.size))
        right, right_b = (
            rng.random((sets, seeds, owner.size)) < _expit((level + moved)[..., owner] + hard)
            for level, moved in ((self.levels, shift), (self.levels + self.gain, shift_b))
        )
        return Answered(right, right_b, sizes.astype(np.float64))


@dataclass(frozen=True, eq=False)
class Answered:
    """Which examples A and B get right, [R, S, N] each, and the clients' numbers of examples, [n]."""

    a: npt.NDArray[np.bool_]
    b: npt.NDArray[np.bool_]
    sizes: Floats

    @cached_property
    def accuracies(self) -> tuple[Floats, Floats]:
        """Of A and of B, [R, S, n]."""
        starts = np.cumsum(np.concatenate([[0], self.sizes[:-1]])).astype(np.int64)
        a, b = (np.add.reduceat(right, starts, axis=-1, dtype=np.int64) / self.sizes for right in (self.a, self.b))
        return a, b


class Case(NamedTuple):
    """What a user has: accuracies of A and B [S, n], sizes [n], and answers [S, N]."""

    a: Floats
    b: Floats
    sizes: Floats
    right: Answers
    right_b: Answers


@dataclass(frozen=True)
class Number:
    """Something an interval is about.

    Attributes:
        name: in the table.
        values: from accuracies [R, n] of A and B.
        evidence: from what a user has.
        of_population: its truth is the value on all examples; else it is the mean over test sets of this size.
        reference: A must not leave a client at 0.
    """

    name: str
    values: Callable[[Floats, Floats], Floats]
    evidence: Callable[[Case], Evidence]
    of_population: bool
    reference: bool = False


def _statistic(label: str, name: str | int, of_population: bool = False) -> Number:
    def values(a: Floats, _: Floats) -> Floats:
        return a[:, name] if isinstance(name, int) else _rows(name, a)

    def evidence(case: Case) -> Evidence:
        return statistic_evidence(case.a, name, sizes=case.sizes, answers=case.right)

    return Number(label, values, evidence, of_population)


def _difference(label: str, name: str, of_population: bool = False) -> Number:
    def evidence(case: Case) -> Evidence:
        second, first = (
            statistic_evidence(values, name, sizes=case.sizes, answers=right)
            for values, right in ((case.b, case.right_b), (case.a, case.right))
        )
        return difference_evidence(second, first)

    return Number(label, lambda a, b: _rows(name, b) - _rows(name, a), evidence, of_population)


def _certificate(label: str) -> Number:
    def evidence(case: Case) -> Evidence:
        known = (case.right_b, case.right)
        return certificate_evidence(case.b, case.a, "uniform", total=case.sizes, answers=known)

    return Number(label, lambda a, b: (b / a - 1).mean(axis=-1), evidence, of_population=True, reference=True)


NUMBERS = (
    _statistic("mean", "mean", of_population=True),
    _statistic("one client, 120 examples", 9, of_population=True),
    _statistic("worst 10 %", "worst10"),
    _statistic("worst 30 %", "worst30"),
    _statistic("median", "median"),
    _statistic("spread (std)", "std"),
    _statistic("Nash welfare", "nash_welfare"),
    _difference("difference of means", "mean", of_population=True),
    _difference("difference of worst 10 %", "worst10"),
    _difference("difference of Nash welfare", "nash_welfare"),
    _difference("difference of spreads", "std"),
    _certificate("certificate"),
)


def worlds() -> tuple[World, ...]:
    """The regimes of the table: ten clients with 10 to 120 test examples, unless the name says otherwise."""
    unequal = np.array([10, 12, 15, 20, 25, 30, 40, 60, 80, 120])
    spread = np.random.default_rng(7).permutation(np.linspace(-1.5, 1.5, 10))
    gain = 0.5 * np.random.default_rng(8).permutation(np.linspace(-1.0, 1.4, 10))
    failed = np.where(np.arange(10) == 3, -4.0, 4.0)
    return (
        World("accuracies about 60 %", 1.0 + spread, gain, unequal),
        World("near 1", 7.0 + spread, gain, unequal),
        World("near 0", -5.0 + spread, gain, unequal),
        World("one failed client", failed + spread / 2, gain, unequal),
        World("10 examples each, about 60 %", 1.0 + spread, gain, np.full(10, 10)),
    )


def coverage(
    world: World, numbers: Sequence[Number], over: Over, num_seeds: int, replicates: int, seed: int = 0
) -> list[float]:
    """For each number, the share of intervals that cover the truth, among those that are defined."""
    rng = np.random.default_rng([seed, num_seeds, len(over)])
    covered, tried = np.zeros(len(numbers)), np.zeros(len(numbers))
    for answered, truths in _scenes(world, numbers, over, num_seeds, replicates, rng):
        a, b = answered.accuracies
        for row in range(len(a)):
            known = (Answers.of(right[row], answered.sizes) for right in (answered.a, answered.b))
            case = Case(a[row], b[row], answered.sizes, *known)
            for place, (number, truth) in enumerate(zip(numbers, truths, strict=True)):
                if number.reference and (case.a <= 0).any():
                    continue
                evidence = number.evidence(case)
                if evidence.why_not(over):
                    continue
                interval = evidence.interval(over, LEVEL)
                covered[place] += interval.low - 1e-12 <= truth <= interval.high + 1e-12
                tried[place] += 1
    enough = tried >= replicates / 5
    return [float(share) for share in np.where(enough, covered / np.maximum(tried, 1), np.nan)]


def _scenes(
    world: World, numbers: Sequence[Number], over: Over, num_seeds: int, replicates: int, rng: np.random.Generator
) -> Iterator[tuple[Answered, list[float]]]:
    """What is drawn again, and the truths; several test sets (or models) that are not drawn again, for an average."""
    if over == "both":
        truths = _expected(world)
        drawn = world.draw(rng, num_seeds, replicates, fixed=False)
        yield drawn, [_truth(number, truths[0 if number.of_population else 1]) for number in numbers]
        return
    share = math.ceil(replicates / FIXED)
    for _ in range(FIXED):
        if over == "seeds":
            many = world.draw(rng, share * num_seeds, 1, fixed=False)
            shape = (share, num_seeds, many.a.shape[-1])
            drawn = Answered(many.a.reshape(shape), many.b.reshape(shape), many.sizes)
            yield drawn, [_truth(number, drawn) for number in numbers]
        else:
            state = rng.bit_generator.state
            drawn = world.draw(rng, 1, share, fixed=True)
            rng.bit_generator.state = state  # the same models again
            large = world.draw(rng, 1, 1, fixed=True, times=2000)
            rng.bit_generator.state = state
            sets = world.draw(rng, 1, 1000, fixed=True)
            yield drawn, [_truth(number, large if number.of_population else sets) for number in numbers]


@cache
def _expected(world: World) -> tuple[Answered, Answered]:
    """Many seeds on many examples, and on test sets of the world's size."""
    rng = np.random.default_rng(99)
    return world.draw(rng, 1, 2000, fixed=False, times=10), world.draw(rng, 1, 10000, fixed=False)


def _truth(number: Number, answered: Answered) -> float:
    """The mean over all test sets and seeds."""
    a, b = (accuracy.reshape(-1, accuracy.shape[-1]) for accuracy in answered.accuracies)
    defined = (a > 0).all(axis=-1) if number.reference else np.full(len(a), True)
    return float(number.values(a[defined], b[defined]).mean()) if defined.any() else math.nan


def _rows(name: str, accuracies: Floats) -> Floats:
    n = accuracies.shape[-1]
    return statistics_of_rows(name, accuracies, np.full(n, 1 / n))


def _expit(x: Floats) -> Floats:
    y: Floats = 1 / (1 + np.exp(-x))
    return y


def table(replicates: int) -> list[str]:
    """The lines of the table, in Markdown; shares off by more than two points in bold."""
    lines = [
        "| | " + " | ".join(f"{over}, {s}" for over in ("seeds", "both") for s in SEEDS) + " | examples |",
        "|---|" + "---:|" * (2 * len(SEEDS) + 1),
    ]
    for world in worlds():
        lines.append(f"| **{world.name}** |" + " |" * (2 * len(SEEDS) + 1))
        columns = [coverage(world, NUMBERS, over, s, replicates) for over in ("seeds", "both") for s in SEEDS]
        columns.append(coverage(world, NUMBERS, "examples", 1, replicates))
        for number, *shares in zip(NUMBERS, *columns, strict=True):
            lines.append(f"| {number.name} | " + " | ".join(_cell(share) for share in shares) + " |")
        print("\n".join(lines[-len(NUMBERS) - 1 :]), flush=True)
    return lines


def _cell(share: float) -> str:
    if math.isnan(share):
        return "-"
    text = f"{100 * share:.1f}"
    return text if abs(share - LEVEL) <= 0.02 else f"**{text}**"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__)
    parser.add_argument("--replicates", type=int, default=1000, help="intervals for each number of the table")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page whose table is replaced")
    parser.add_argument("--dry-run", action="store_true", help="print the table, write nothing")
    given = parser.parse_args()
    lines = table(given.replicates)
    if not given.dry_run:
        before, _, rest = given.page.read_text(encoding="utf-8").partition(MARKS[0])
        after = rest.partition(MARKS[1])[2]
        text = "\n".join([MARKS[0], "", *lines, "", MARKS[1]])
        given.page.write_text(before + text + after, encoding="utf-8")


if __name__ == "__main__":
    main()

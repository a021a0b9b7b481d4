"""The verdict on a model that was compared with others: proportionally fair, refuted, or undecided; and in words.

The intervals of all comparisons hold together (Bonferroni: with m of them, each is one of 1 - (1 - level) / m; it needs
no assumption about how they depend on each other, which a few seeds could not tell). From them:

- *refuted by X* if the lower limit of X is above 0: moving to X is a gain on average, beyond chance.
- *fair against these models* if no upper limit is above the tolerance.
- *undecided* otherwise, with the seeds that would decide (`propfair.fairness.planning`).

A model that equals the reference, or one that is compared twice, adds nothing: it is no comparison of its own. So the
family never shrinks or grows by copies, and the words stay the same.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from propfair.errors import ConfigError, DataError
from propfair.fairness.intervals import Evidence, Interval, Over
from propfair.fairness.planning import MOST, POWER, examples_to_decide, seeds_to_decide

TOLERANCE = 0.01  # a change of 1 % on average


@dataclass(frozen=True)
class Verdict:
    """What comparisons say of a model.

    Attributes:
        kind: "fair", "refuted" or "undecided".
        decisive: the model behind it: the one with the largest lower limit if refuted, else with the largest upper one.
            Empty if there was no other model.
        intervals: model to interval, all at once at `level`; None if nothing is known about chance.
        unknown: model to the reason why there is no interval, where there is none.
        same: models that equal the reference.
        tolerance: change on average up to which a model counts as fair.
        level: of all intervals together.
        alpha: order of fairness.
        seeds_to_decide: for "undecided" over seeds, how many in all would decide, with a power of 80 %; None if it is
            more than 100, or not known.
        examples_to_decide: likewise, how many times the test examples.
    """

    kind: Literal["fair", "refuted", "undecided"]
    decisive: str
    intervals: dict[str, Interval | None]
    unknown: dict[str, str]
    same: tuple[str, ...]
    num_distinct: int
    tolerance: float
    level: float
    alpha: float
    seeds_to_decide: int | None = None
    examples_to_decide: float | None = None

    @property
    def fairness(self) -> str:
        """What is certified, in words."""
        return {0.0: "utilitarian", 1.0: "proportionally fair"}.get(self.alpha, f"{self.alpha:g}-fair")

    @property
    def finding(self) -> str:
        """The verdict in a few words."""
        if self.kind == "refuted":
            return f"refuted by {self.decisive}"
        if self.kind == "undecided":
            return "undecided"
        others = "this model" if self.num_distinct == 1 else f"these {self.num_distinct} models"
        within = "" if self._exact else f" within {self._amount(self.tolerance)}"
        return f"{self.fairness} against {others}{within}"

    @property
    def reason(self) -> str:
        """The numbers behind it."""
        if not self.decisive:
            return "there is no other model to compare with"
        interval = self.intervals[self.decisive]
        if interval is None:
            return f"nothing is known of chance for {self.decisive}: {self.unknown[self.decisive]}"
        change = f"changes the clients by {self._change(interval)}"
        if self.kind == "refuted":
            small = interval.high <= self.tolerance and not self._exact
            return f"it {change}" + (f", within the tolerance of {self._amount(self.tolerance)}" if small else "")
        if self.kind == "fair":
            return f"{'' if self.num_distinct == 1 else 'at most, '}{self.decisive} {change}"
        return f"{self.decisive} {change}; {self._way_out(interval)}"

    @property
    def words(self) -> str:
        """The verdict as a sentence: what every page and command prints."""
        return f"{self.finding}: {self.reason}"

    def __str__(self) -> str:
        return self.words

    def as_dict(self) -> dict[str, object]:
        """All of it as plain lists and numbers, for JSON."""
        return {
            "verdict": self.kind,
            "words": self.words,
            "decisive": self.decisive,
            "tolerance": self.tolerance,
            "level": self.level,
            "alpha": self.alpha,
            "num_distinct": self.num_distinct,
            "same": list(self.same),
            "seeds_to_decide": self.seeds_to_decide,
            "examples_to_decide": self.examples_to_decide,
        }

    @property
    def _exact(self) -> bool:
        interval = self.intervals.get(self.decisive)
        return interval is not None and interval.over == "nothing"

    def _amount(self, value: float) -> str:
        return f"{100 * value:g} %" if self.alpha == 1 else f"{value:g}"

    def _change(self, interval: Interval) -> str:
        if self.alpha == 1:
            size, limits = f"{100 * interval.value:+.2f} % on average", str(interval)
        else:
            size, limits = f"a sum of {interval.value:+.4g}", f"[{interval.low:+.4g}, {interval.high:+.4g}]"
        if interval.over == "nothing":
            return f"{size} ({interval.source})"
        family = "" if interval.family == 1 else f", all {interval.family} at once"
        left_out = f", {interval.leaves_out} left out" if interval.over == "examples" else ""
        return f"{size}, {limits} ({100 * self.level:g} % {interval.source}{family}{left_out})"

    def _way_out(self, interval: Interval) -> str:
        power = f"(power {100 * POWER:g} %)"
        if interval.over == "examples":
            if self.examples_to_decide is None:
                return f"more than {MOST} times the test examples would be needed to decide {power}"
            return f"about {self.examples_to_decide:.1f} times the test examples would decide {power}"
        if self.seeds_to_decide is not None:
            return f"about {self.seeds_to_decide} seeds would decide {power}"
        if interval.over == "both":
            return f"{MOST} seeds would not decide without more test examples {power}"
        return f"more than {MOST} seeds would be needed to decide {power}"


def decide(
    found: Mapping[str, Evidence],
    *,
    tolerance: float = TOLERANCE,
    level: float = 0.95,
    over: Over | None = None,
    alpha: float = 1.0,
) -> Verdict:
    """The verdict from the evidence on the certificate of each other model.

    Args:
        found: name of the other model to `certificate_evidence`.
        tolerance: an average change up to this counts as none; 0.01 is 1 %.
        level: of all intervals together.
        over: what intervals are drawn over; by default seeds where a model has several, else examples.
        alpha: order of fairness, for the words.

    >>> import numpy as np
    >>> found = {"AFL": Evidence(np.array([0.03, 0.05, 0.04])), "TERM": Evidence(np.array([-0.02, 0.01, 0.0]))}
    >>> decide(found).words  # doctest: +NORMALIZE_WHITESPACE
    'refuted by AFL: it changes the clients by +4.00 % on average,
    [+0.42 %, +7.58 %] (95 % over 3 seeds, all 2 at once)'
    >>> decide({**found, "AFL again": found["AFL"]}).words == decide(found).words
    True
    """
    if tolerance < 0:
        raise ConfigError(f"tolerance must be >= 0; got tolerance={tolerance}. Use 0.01 for 1 %.")
    if not found:
        raise DataError("there is nothing to decide: give the evidence on one other model or more.")
    same = tuple(name for name, evidence in found.items() if evidence.same)
    distinct = _distinct({name: evidence for name, evidence in found.items() if not evidence.same})
    family = max(1, len(set(distinct.values())))
    intervals = {name: _interval(evidence, over, level, family) for name, evidence in found.items()}
    leaders = list(dict.fromkeys(distinct.values()))
    limits = {name: _limits(intervals[name]) for name in leaders}
    kind, decisive = _kind(limits, tolerance)
    unknown = {name: _why_not(found[name], over) for name, interval in intervals.items() if interval is None}
    seeds, examples = None, None
    known = {name: (found[name], interval) for name in leaders if (interval := intervals[name]) is not None}
    if kind == "undecided" and leaders and len(known) == len(leaders):
        drawn = {interval.over for _, interval in known.values()}
        if drawn <= {"seeds", "both"}:
            seeds = seeds_to_decide(known, tolerance)
        elif drawn == {"examples"}:
            examples = examples_to_decide(known, tolerance)
    return Verdict(kind, decisive, intervals, unknown, same, len(leaders), tolerance, level, alpha, seeds, examples)


def _interval(evidence: Evidence, over: Over | None, level: float, family: int) -> Interval | None:
    if evidence.same:
        return evidence.interval("nothing", level)
    drawn = evidence.nearest(over)
    return None if drawn is None else evidence.interval(drawn, level, family)


def _why_not(evidence: Evidence, over: Over | None) -> str:
    return evidence.why_not(over or ("seeds" if evidence.num_seeds > 1 else "examples")).rstrip(".")


def _distinct(found: Mapping[str, Evidence]) -> dict[str, str]:
    """Each model's name to the first one with the same numbers."""
    first: dict[object, str] = {}
    return {name: first.setdefault(evidence.key, name) for name, evidence in found.items()}


def _limits(interval: Interval | None) -> tuple[float, float]:
    return (-math.inf, math.inf) if interval is None else (interval.low, interval.high)


def _kind(
    limits: Mapping[str, tuple[float, float]], tolerance: float
) -> tuple[Literal["fair", "refuted", "undecided"], str]:
    if not limits:
        return "undecided", ""
    refuting = max(limits, key=lambda name: limits[name][0])
    if limits[refuting][0] > 0:
        return "refuted", refuting
    largest = max(limits, key=lambda name: limits[name][1])
    return ("fair" if limits[largest][1] <= tolerance else "undecided"), largest

"""Verdicts over several models at once: what decides, what copies must not do, and what it would take."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from propfair.errors import ConfigError, DataError
from propfair.fairness import Evidence, certificate, certificate_evidence, decide
from propfair.fairness.arrays import FloatArray
from propfair.fairness.verdict import Verdict

relaxed = settings(deadline=None, max_examples=60)
values = st.floats(-0.2, 0.2).map(lambda x: round(x, 3))
columns = st.integers(2, 5).flatmap(
    lambda seeds: st.lists(st.lists(values, min_size=seeds, max_size=seeds), min_size=1, max_size=5, unique_by=tuple)
)


def found(**by_seed: list[float]) -> dict[str, Evidence]:
    return {name: Evidence(np.array(numbers)) for name, numbers in by_seed.items()}


def test_refuted_only_by_a_lower_limit_above_zero() -> None:
    verdict = decide(found(A=[0.05, 0.05, 0.06], B=[-0.1, 0.2, 0.0]))
    assert verdict.kind == "refuted"
    assert verdict.decisive == "A"
    assert verdict.words.startswith("refuted by A: it changes the clients by +5.33 % on average, [+")
    assert decide(found(A=[0.05, 0.0, 0.01])).kind == "undecided"


def test_fair_only_if_every_upper_limit_is_within_the_tolerance() -> None:
    numbers = found(A=[-0.05, -0.051, -0.049], B=[0.001, 0.0, 0.002])
    verdict = decide(numbers, tolerance=0.02)
    assert verdict.kind == "fair"
    assert verdict.words.startswith(
        "proportionally fair against these 2 models within 2 %: at most, B changes the clients by"
    )
    assert decide(numbers, tolerance=0.001).kind == "undecided"
    assert decide(found(A=[-0.05, -0.051, -0.049])).words.startswith(
        "proportionally fair against this model within 1 %: A changes the clients by -5.00 % on average, ["
    )


def test_a_small_refutation_says_that_it_is_small() -> None:
    verdict = decide(found(A=[0.0030, 0.0031, 0.0029]))
    assert verdict.kind == "refuted"
    assert verdict.words.endswith(", within the tolerance of 1 %")


@relaxed
@given(columns, st.data())
def test_copies_change_nothing(table: list[list[float]], data: st.DataObject) -> None:
    """A copy of the reference, and any model once more under another name."""
    plain = {f"m{k}": Evidence(np.array(column)) for k, column in enumerate(table)}
    again = data.draw(st.sampled_from(sorted(plain)))
    more = {
        **plain,
        "copy of it": Evidence(plain[again].by_seed.copy()),
        "the reference": Evidence(np.zeros(len(table[0])), same=True),
    }
    before, after = decide(plain), decide(more)
    assert after.words == before.words
    assert after.num_distinct == before.num_distinct == len(table)
    assert {name: after.intervals[name] for name in plain} == before.intervals
    assert after.intervals["copy of it"] == before.intervals[again]
    assert after.same == ("the reference",)


def utilities(rng: np.random.Generator, shift: float) -> FloatArray:
    table: FloatArray = np.clip(0.7 + shift + 0.02 * rng.standard_normal((4, 6)), 0.05, 1.0)
    return table


def test_copies_of_the_reference_are_known_by_their_utilities() -> None:
    rng = np.random.default_rng(0)
    star, other = utilities(rng, 0.0), utilities(rng, 0.0)
    one = {"other": certificate_evidence(other, star, "uniform")}
    copied = {**one, "reference again": certificate_evidence(star.copy(), star, "uniform")}
    assert decide(one).kind == "undecided"  # findings: a duplicate of the reference turned this into "fair"
    assert decide(copied).words == decide(one).words


def test_only_copies_leave_nothing_to_decide() -> None:
    verdict = decide({"same": Evidence(np.zeros(3), same=True)})
    assert verdict.words == "undecided: there is no other model to compare with"


@relaxed
@given(columns, st.floats(-0.1, 0.1))
def test_more_models_never_make_a_verdict_bolder(table: list[list[float]], shift: float) -> None:
    """With one model more, what was undecided does not become fair."""
    plain = {f"m{k}": Evidence(np.array(column)) for k, column in enumerate(table)}
    more = {**plain, "new": Evidence(np.linspace(-0.01, 0.01, len(table[0])) + shift)}
    if decide(plain).kind == "undecided":
        assert decide(more).kind != "fair"


def test_the_family_is_wrong_in_five_percent_of_cases_at_most() -> None:
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(400):
        shared = 0.02 * rng.standard_normal((5, 1))  # models are compared with one reference
        changes = shared + 0.02 * rng.standard_normal((5, 6))
        wrong += decide({f"m{k}": Evidence(column) for k, column in enumerate(changes.T)}).kind != "undecided"
    assert wrong / 400 <= 0.05 + 0.02


def test_so_many_seeds_decide_in_four_cases_of_five() -> None:
    """With the spread at the limit that the plan allows for; with a smaller one they decide more often."""
    rng = np.random.default_rng(4)
    numbers = found(A=[0.03, 0.0, 0.05, 0.01])
    verdict = decide(numbers)
    assert verdict.seeds_to_decide is not None
    assert verdict.words.endswith(f"about {verdict.seeds_to_decide} seeds would decide (power 80 %)")
    std = math.sqrt(numbers["A"].seed_variance * 3 / stats.chi2.ppf(0.2, 3))
    for seeds, least, most in ((verdict.seeds_to_decide, 0.75, 0.87), (verdict.seeds_to_decide // 2, 0.2, 0.7)):
        drawn = rng.normal(numbers["A"].value, std, (500, seeds))
        decided = np.mean([decide({"A": Evidence(x)}).kind != "undecided" for x in drawn])
        assert least < decided < most


def test_huge_intervals_of_two_seeds_promise_nothing() -> None:
    """Student's t falls from 12.7 to 4.3 with a third seed, which is no reason to expect that it decides."""
    verdict = decide(found(A=[0.11, -0.05], B=[0.02, -0.12]))
    assert verdict.seeds_to_decide is None or verdict.seeds_to_decide > 20
    assert "about 3 seeds" not in verdict.words


def test_some_things_no_number_of_seeds_decides() -> None:
    verdict = decide(found(A=[0.01, -0.01]), tolerance=0.0)
    assert verdict.seeds_to_decide is None
    assert verdict.words.endswith("more than 100 seeds would be needed to decide (power 80 %)")


def test_over_examples_other_seeds_are_left_out() -> None:
    evidence = {"A": certificate_evidence([0.75, 0.52], [0.66, 0.56], [5, 3], total=[100, 100], both=[60, 50])}
    verdict = decide(evidence)
    assert verdict.kind == "undecided"
    assert "(95 % over test examples, other seeds left out); about" in verdict.words
    assert verdict.words.endswith("times the test examples would decide (power 80 %)")
    assert verdict.seeds_to_decide is None


def test_without_any_knowledge_of_chance_nothing_is_decided() -> None:
    verdict = decide({"A": certificate_evidence([0.9, 0.9], [0.1, 0.1], "uniform")})
    assert verdict.kind == "undecided"
    assert "nothing is known of chance" in verdict.words
    assert verdict.intervals == {"A": None}


def test_exact_numbers() -> None:
    fair = certificate({"A": [0.4, 0.5]}, [0.5, 0.5], "uniform").verdict()
    assert fair.words == (
        "proportionally fair against this model: A changes the clients by -10.00 % on average (numbers taken as exact)"
    )
    assert certificate({"A": [0.5, 0.5]}, [0.5, 0.5], "uniform").verdict().kind == "undecided"  # only itself
    assert certificate({"A": [0.6, 0.4]}, [0.5, 0.5], "uniform").verdict().kind == "fair"  # 0 is not above 0
    assert certificate([0.6], [0.5], [1], alpha=2.0).verdict().words == (
        "refuted by model 0: it changes the clients by a sum of +0.4 (numbers taken as exact)"
    )
    assert str(certificate([0.4], [0.5], [1], alpha=0.0).verdict()).startswith("utilitarian against this model")


def test_as_json() -> None:
    verdict = decide(found(A=[0.03, 0.0, 0.05, 0.01]))
    again = json.loads(json.dumps(verdict.as_dict()))
    assert again["verdict"] == "undecided"
    assert again["words"] == verdict.words
    assert again["seeds_to_decide"] == verdict.seeds_to_decide
    assert isinstance(verdict, Verdict)


def test_errors() -> None:
    with pytest.raises(ConfigError, match=r"0\.01 for 1 %"):
        decide(found(A=[0.1, 0.2]), tolerance=-1)
    with pytest.raises(DataError, match="one other model or more"):
        decide({})

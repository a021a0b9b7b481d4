"""Every registered algorithm through the same battery: a new file in propfair.algorithms needs no new line here."""

import dataclasses
import doctest
import math
import pickle
import sys
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from propfair.algorithms import ALGORITHMS, Algorithm, Cohort, Needs, Order, State
from propfair.algorithms.base import as_floats, order_for
from propfair.core.client import batch_loss, observe, transformed
from propfair.core.messages import Orders
from propfair.core.updates import PastUpdates, gram_matrix
from propfair.errors import ConfigError
from propfair.registry import fields_of
from tests.builders import REQUIRED

MORE: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", {"weighting": "uniform"}),
    *(("propfair", {"placement": placement}) for placement in ("update", "step")),
    *(("propfair", {"placement": placement, "M": 2.0}) for placement in ("server", "update", "step")),
    *(("propfair", {"placement": p, "M": tuple(2.0 + k for k in range(12))}) for p in ("server", "update", "step")),
    ("propfair", {"preset": "paper", "M": tuple(2.0 + k for k in range(12))}),
    ("propfair", {"ratio": 50.0, "beta": 0.0, "weighting": "samples"}),
    ("alpha-fair", {"alpha": 0.0}),
    ("alpha-fair", {"alpha": 2.0, "M": 5.0, "variant": "practical"}),
    ("alpha-fair", {"alpha": 3.0, "placement": "update"}),
    ("alpha-fair", {"alpha": 2.0, "placement": "step"}),
    ("afl", {"gamma": 5.0, "dual": "eg"}),
    ("afl", {"start": "uniform", "use": "old", "unbiased": False, "average_iterates": True}),
    ("q-fedavg", {"q": 5.0}),
    ("q-fedavg", {"q": 1.0, "loss_floor": 0.0, "weighting": "none"}),
    ("q-fedavg", {"q": 100.0, "damping": False}),
    ("q-fedavg", {"q": 0.5, "placement": "client"}),
    ("q-fedsgd", {"q": 2.0, "L": 3.0}),
    ("q-fedsgd", {"q": 2.0, "static_step": True}),
    ("term", {"alpha": -2.0}),
    ("term", {"alpha": 2.0, "tau": 1.0, "normaliser": "running"}),
    ("gifair", {"coeff": 0.9, "side": "client"}),
    ("gifair", {"coeff": 0.9, "groups": (0, 0, 1, 1, 2, 2, 0, 1, 2, 3, 3, 3)}),
    ("fedmgda+", {"epsilon": 1.0, "centre": "samples", "global_lr": "median_norm", "decay": 0.5}),
    ("fedmgda+", {"zero_update": "stop"}),
    ("nash-mtl", {"alpha": 0.5, "scale": "unit", "weighting": "uniform"}),
    ("aaggff", {"setting": "device", "cdf": "frechet"}),
    ("adafed", {"gamma": 0.0}),
    ("adafed", {"gamma": 3.0, "scale": "absolute"}),
    ("fedmdfg", {"theta": 0.0}),
    ("feddg-ga", {"step": 5.0, "decay_rounds": 100}),
    ("drfl", {"q": 3.0, "weighting": "none", "loss_floor": 0.0}),
    ("fedfv", {"alpha": 0.0, "tau": 0, "weighting": "uniform"}),
    ("delta-fl", {"theta": 0.3, "boundary": "split"}),
    ("semi-vred", {"b": 10.0, "side": "both"}),
    ("ditto", {"over": "term", "options": {"alpha": 2.0}}),
    ("ditto", {"over": "fednova", "options": {"over": "q-fedavg", "options": {"q": 1.0}}}),
    ("fednova", {"over": "fedmgda+"}),
    ("fednova", {"over": "fedfv", "options": {"tau": 3}}),
    ("ditto", {"over": "propfair", "options": {"placement": "step"}}),
]
CASES = [
    *((name, REQUIRED.get(name, {})) for name in ALGORITHMS.names()),
    *(
        (n, {**REQUIRED.get(n, {}), "preset": preset})
        for n in ALGORITHMS.names()
        for preset in ALGORITHMS.get(n).presets
    ),
    *MORE,
]
TOTAL = 12  # clients of the federation
every_case = pytest.mark.parametrize(("name", "options"), CASES, ids=[f"{n}-{o}" for n, o in CASES])
every_name = pytest.mark.parametrize("name", ALGORITHMS.names())

losses = st.sampled_from([0.0, 1e-12, 0.3, 1.0, 1.0, 2.5, 7.0, 1e6]) | st.floats(0, 1e6)
norms = st.sampled_from([0.0, 1e-12, 0.1, 1.0, 1.0, 1e3, 1e15]) | st.floats(0, 1e15)
directions = st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0]), min_size=3, max_size=3)


@st.composite
def cohorts(draw: st.DrawFn) -> tuple[Cohort, Tensor]:
    """A cohort with the updates [K, 3] behind its Gram matrix: some zero, some equal, some opposite."""
    clients = draw(st.lists(st.integers(0, TOTAL - 1), min_size=1, max_size=6, unique=True))
    K = len(clients)
    sizes = draw(st.lists(st.integers(1, 1000), min_size=K, max_size=K))
    unit = as_floats(draw(st.lists(directions, min_size=K, max_size=K)))
    length = as_floats(draw(st.lists(norms, min_size=K, max_size=K)))
    deltas = unit * (length / unit.norm(dim=1).clamp(min=1)).unsqueeze(1)
    cohort = Cohort.of(
        share=[size / sum(sizes) for size in sizes],
        loss=draw(st.lists(losses, min_size=K, max_size=K)),
        deltas=deltas.tolist(),
        clients=tuple(clients),
        num_steps=[float(s) for s in draw(st.lists(st.integers(1, 50), min_size=K, max_size=K))],
        round_=draw(st.integers(1, 300)),
    )
    return cohort, deltas


def whole_share() -> Tensor:
    sizes = torch.arange(1, TOTAL + 1, dtype=torch.float64)
    return sizes / sizes.sum()


def permuted(cohort: Cohort, order: list[int]) -> Cohort:
    index = torch.tensor(order)
    assert cohort.norm2 is not None
    assert cohort.gram is not None
    return dataclasses.replace(
        cohort,
        clients=tuple(cohort.clients[k] for k in order),
        share=cohort.share[index],
        num_steps=cohort.num_steps[index],
        loss=cohort.loss[index],
        norm2=cohort.norm2[index],
        gram=cohort.gram[index][:, index],
    )


def copied(state: State) -> State:
    return {name: value.clone() for name, value in state.items()}


class Round(NamedTuple):
    """What a round of the server leaves behind."""

    weights: Tensor  # [K + R]
    update: Tensor  # [P]
    state: State
    past: PastUpdates
    diagnosis: dict[str, float]


def run_round(algorithm: Algorithm, cohort: Cohort, deltas: Tensor, state: State, past: PastUpdates) -> Round:
    """Every method of the contract in the order in which the server calls them."""
    orders = [order_for(algorithm, client, state) for client in cohort.clients]
    batches = [torch.tensor([0.1, 0.5, 3.0]) * (1 + client) for client in cohort.clients]
    said = [observe(algorithm, losses, order) for losses, order in zip(batches, orders, strict=True)]
    observed = {name: as_floats([of_one[name] for of_one in said]) for name in said[0]}
    algorithm.prior(cohort, state)
    absent = past.absent(cohort.clients)
    if Needs.GRAM in algorithm.needs:
        cohort = dataclasses.replace(cohort, gram=gram_matrix(deltas, absent.updates), past=absent.rows)
    weights, state = algorithm.weigh(dataclasses.replace(cohort, observed=observed), state)
    assert weights.shape == (len(cohort) + len(cohort.past),)
    update = weights[: len(cohort)] @ deltas + weights[len(cohort) :] @ absent.updates[: len(cohort.past)]
    state = algorithm.learn(dataclasses.replace(cohort, observed=observed), state)
    past = past.followed_by(deltas, cohort, algorithm.remember) if algorithm.remember else past
    return Round(weights, update, state, past, algorithm.diagnose(cohort, weights, state))


def run_rounds(algorithm: Algorithm, *drawn: tuple[Cohort, Tensor]) -> list[Round]:
    """Rounds from the beginning, one after the other."""
    state, past, rounds = algorithm.init(whole_share()), PastUpdates.none(torch.zeros(3, dtype=torch.float64)), []
    for number, (cohort, deltas) in enumerate(drawn):
        now = dataclasses.replace(cohort, round=drawn[0][0].round + number)
        rounds.append(run_round(algorithm, now, deltas, state, past))
        state, past = rounds[-1].state, rounds[-1].past
    return rounds


def assert_same_state(found: State, expected: State, tolerance: float = 0.0) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=tolerance, atol=tolerance, equal_nan=True)


@every_case
@settings(max_examples=20, deadline=None)
@given(drawn=cohorts(), later=cohorts())
def test_weights_are_finite_and_double_over_two_rounds(
    name: str, options: dict[str, Any], drawn: tuple[Cohort, Tensor], later: tuple[Cohort, Tensor]
) -> None:
    algorithm = ALGORITHMS.make(name, options)
    for (cohort, _), done in zip((drawn, later), run_rounds(algorithm, drawn, later), strict=True):
        assert done.weights.dtype == torch.float64
        assert done.weights.isfinite().all()
        assert done.update.isfinite().all()
        assert all(math.isfinite(value) for value in done.diagnosis.values())
        assert all(isinstance(value, Tensor) for value in done.state.values())
        orders = [order_for(algorithm, client, done.state) for client in cohort.clients]
        assert all(math.isfinite(order.lr_scale) and order.lr_scale >= 0 for order in orders)
        assert all(order.numbers.keys() == orders[0].numbers.keys() for order in orders)
        assert all(math.isfinite(value) for order in orders for value in order.numbers.values())


@every_case
@settings(max_examples=12, deadline=None)
@given(drawn=cohorts(), rng=st.randoms(use_true_random=False))
def test_the_order_of_clients_does_not_matter(
    name: str, options: dict[str, Any], drawn: tuple[Cohort, Tensor], rng: Any
) -> None:
    algorithm = ALGORITHMS.make(name, options)
    cohort, deltas = drawn
    order = rng.sample(range(len(cohort)), len(cohort))
    (first,) = run_rounds(algorithm, drawn)
    (other,) = run_rounds(algorithm, (permuted(cohort, order), deltas[order]))
    scale = float((first.weights.abs() @ deltas.norm(dim=1)).clamp(min=1e-12))
    assert torch.allclose(other.update, first.update, rtol=1e-5, atol=1e-5 * scale)
    if Needs.GRAM not in algorithm.needs:  # where updates are nearly dependent, many weights give the same step
        largest = float(first.weights.abs().max())
        assert torch.allclose(other.weights, first.weights[order], rtol=1e-9, atol=1e-9 * largest)
    assert_same_state(other.state, first.state, 1e-9)


@every_case
@settings(max_examples=8, deadline=None)
@given(drawn=cohorts(), later=cohorts())
def test_methods_are_pure(
    name: str, options: dict[str, Any], drawn: tuple[Cohort, Tensor], later: tuple[Cohort, Tensor]
) -> None:
    algorithm = ALGORITHMS.make(name, options)
    fields = fields_of(algorithm)
    given_tensors = [vars(cohort)[f.name] for cohort, _ in (drawn, later) for f in dataclasses.fields(cohort)]
    tensors = [value for value in given_tensors if isinstance(value, Tensor)]
    before = [value.clone() for value in tensors]
    first, second = run_rounds(algorithm, drawn, later), run_rounds(algorithm, drawn, later)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one.weights, other.weights)
        assert torch.equal(one.update, other.update)
        assert_same_state(one.state, other.state)
    state = copied(first[0].state)
    run_round(algorithm, *later, first[0].state, first[0].past)
    assert_same_state(first[0].state, state)
    assert all(torch.equal(value, as_before) for value, as_before in zip(tensors, before, strict=True))
    assert fields_of(algorithm) == fields


@pytest.mark.parametrize(
    ("name", "options"), [case for case in CASES if Needs.NORMS in ALGORITHMS.make(*case).needs], ids=str
)
@settings(max_examples=30, deadline=None)
@given(drawn=cohorts())
def test_the_prior_is_the_weights_up_to_one_factor(
    name: str, options: dict[str, Any], drawn: tuple[Cohort, Tensor]
) -> None:
    algorithm = ALGORITHMS.make(name, options)
    cohort, _ = drawn
    state = algorithm.init(whole_share())
    prior = algorithm.prior(cohort, state)
    assert prior is not None
    weights, _ = algorithm.weigh(cohort, state)
    assert torch.allclose(weights * prior.sum(), prior * weights.sum(), rtol=1e-9, atol=1e-300)


@every_case
@settings(max_examples=8, deadline=None)
@given(drawn=cohorts())
def test_a_rule_looks_at_no_more_than_it_says(name: str, options: dict[str, Any], drawn: tuple[Cohort, Tensor]) -> None:
    algorithm = ALGORITHMS.make(name, options)
    cohort, _ = drawn
    blind = dataclasses.replace(
        cohort,
        loss=cohort.loss if algorithm.needs & Needs.ANY_LOSS else torch.full_like(cohort.loss, torch.nan),
        norm2=cohort.norm2 if algorithm.needs & (Needs.NORMS | Needs.GRAM) else None,
        gram=cohort.gram if algorithm.needs & Needs.GRAM else None,
    )
    state = algorithm.init(whole_share())
    assert torch.equal(algorithm.weigh(blind, state)[0], algorithm.weigh(cohort, state)[0])


@pytest.mark.parametrize(
    ("name", "options"), [case for case in CASES if Needs.OWN_LOSS in ALGORITHMS.make(*case).needs], ids=str
)
@settings(max_examples=30, deadline=None)
@given(drawn=cohorts(), later=cohorts(), loss=losses)
def test_where_clients_look_at_their_own_loss_sums_are_enough(
    name: str, options: dict[str, Any], drawn: tuple[Cohort, Tensor], later: tuple[Cohort, Tensor], loss: float
) -> None:
    algorithm = ALGORITHMS.make(name, options)
    (first,) = run_rounds(algorithm, drawn)
    cohort = later[0]
    other = dataclasses.replace(cohort, loss=torch.cat([as_floats([loss]), cohort.loss[1:]]))
    (weights, state), (changed, changed_state) = (algorithm.weigh(one, first.state) for one in (cohort, other))
    if len(cohort) > 1:  # what one client finds changes nothing between the others, and nothing that they keep
        assert torch.allclose(weights[1:] * changed[1:].sum(), changed[1:] * weights[1:].sum(), atol=1e-200)
    for key, value in state.items():
        one, two = value.clone(), changed_state[key].clone()
        if len(value) == TOTAL:
            one[cohort.clients[0]] = two[cohort.clients[0]] = 0
        assert torch.equal(one.nan_to_num(), two.nan_to_num())
    same_sums = [Cohort.of([1 / 3] * 3, loss=values) for values in ([1.0, 5.0, 6.0], [2.0, 3.0, 7.0])]
    told = [algorithm.learn(one, first.state) for one in same_sums]  # losses and their squares sum to 12 and 62
    for key in told[0]:
        assert len(told[0][key]) == TOTAL or torch.allclose(told[0][key], told[1][key])


@every_case
def test_it_survives_pickling_and_the_config_round_trip(name: str, options: dict[str, Any]) -> None:
    algorithm = ALGORITHMS.make(name, options)
    assert pickle.loads(pickle.dumps(algorithm)) == algorithm
    assert ALGORITHMS.make(name, fields_of(algorithm)) == algorithm
    assert str(algorithm).startswith(name)
    assert hash(algorithm) == hash(ALGORITHMS.make(name, options))


@every_case
def test_wrappers_pass_everything_on(name: str, options: dict[str, Any]) -> None:
    inner, outer = (ALGORITHMS.make(name, options), ALGORITHMS.make("fednova", {"over": name, "options": options}))
    for part in ("order", "reduce", "objective", "watch", "personal"):
        assert (getattr(outer, part) is None) == (getattr(inner, part) is None), part
    for part in ("needs", "personal", "remember", "average_iterates", "privacy"):
        assert getattr(outer, part) == getattr(inner, part), part
    assert inner.remember == 0 or Needs.GRAM in inner.needs
    assert_same_state(outer.init(whole_share()), inner.init(whole_share()))


@every_case
def test_the_objective_is_increasing_and_has_finite_gradients(name: str, options: dict[str, Any]) -> None:
    algorithm = ALGORITHMS.make(name, options)
    order = order_for(algorithm, 0, algorithm.init(whole_share()))
    for dtype in (torch.float32, torch.float64):
        grid = torch.cat([torch.linspace(0, 12, 241, dtype=dtype), torch.tensor([1e3, 1e6], dtype=dtype)])
        loss = grid.clone().requires_grad_()
        value = transformed(algorithm, loss, order)
        gradient = torch.autograd.grad(value.sum(), loss)[0]
        assert value.isfinite().all()
        assert gradient.isfinite().all()
        assert (gradient >= 0).all()
        assert (gradient[1:] > 0).all()
        assert (value.detach().diff() > 0).all()
        assert (value.detach()[:241].diff() < 1e3).all(), "a jump"
    assert all(math.isfinite(v) for v in observe(algorithm, torch.rand(5) * 10, order).values())


@every_case
def test_clients_can_be_trained_in_one_vectorised_call(name: str, options: dict[str, Any]) -> None:
    algorithm = ALGORITHMS.make(name, options)
    orders = [order_for(algorithm, client, algorithm.init(whole_share())) for client in range(4)]
    losses = torch.rand(4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 4

    def objective(losses: Tensor, order: Order) -> Tensor:
        return transformed(algorithm, batch_loss(algorithm, losses), order)

    one_by_one = [torch.func.grad(objective)(row, order) for row, order in zip(losses, orders, strict=True)]
    columns = Orders.of(orders)
    numbers: Any = {name: as_floats(column) for name, column in columns.numbers.items()}
    stacked = Order(as_floats(columns.lr_scale), numbers)  # type: ignore[arg-type]
    together = torch.func.vmap(torch.func.grad(objective))(losses, stacked)
    assert torch.allclose(together, torch.stack(one_by_one))


FAIR = ["afl", "q-fedavg", "q-fedsgd", "term", "delta-fl", "semi-vred"]


@pytest.mark.parametrize(
    ("name", "options"),
    [*((name, {}) for name in FAIR), ("propfair", {"weighting": "samples"}), ("alpha-fair", {"weighting": "samples"})],
    ids=str,
)
@settings(max_examples=30, deadline=None)
@given(drawn=cohorts())
def test_a_larger_loss_never_counts_less(name: str, options: dict[str, Any], drawn: tuple[Cohort, Tensor]) -> None:
    """In proportion to the data, for clients that take equally many steps."""
    cohort = dataclasses.replace(drawn[0], num_steps=torch.ones(len(drawn[0]), dtype=torch.float64))
    algorithm = ALGORITHMS.make(name, options)
    state = {"lambda": torch.full((TOTAL,), 1 / TOTAL, dtype=torch.float64)}
    weights, _ = algorithm.weigh(cohort, state if name == "afl" else algorithm.init(whole_share()))
    relative = weights if name == "afl" else weights / cohort.share
    ordered = relative[cohort.loss.argsort(stable=True)]
    assert (ordered.diff() >= -1e-9 * ordered.max()).all()


@every_case
@settings(max_examples=8, deadline=None)
@given(values=st.lists(st.floats(0, 100), min_size=1, max_size=8))
def test_the_batch_loss_ignores_padding(name: str, options: dict[str, Any], values: list[float]) -> None:
    algorithm = ALGORITHMS.make(name, options)
    losses = as_floats(values)
    plain = batch_loss(algorithm, losses)
    weight = as_floats([1 / len(values)] * len(values) + [0.0, 0.0])
    padded = batch_loss(algorithm, torch.cat([losses, as_floats([50.0, 3.0])]), weight)
    assert float(padded) == pytest.approx(float(plain), rel=1e-9, abs=1e-9)
    assert losses.min() - 1e-9 <= float(plain) <= losses.max() + 1e-9


@every_name
def test_documentation(name: str) -> None:
    part = ALGORITHMS.get(name)
    text = part.__doc__ or ""
    examples = doctest.DocTestFinder(recurse=False).find(part, name, globs=vars(sys.modules[part.__module__]))
    assert any(test.examples for test in examples), "no doctest"
    assert "References:" in text
    assert "$$" in text, "no equation"
    options = [option.name for option in ALGORITHMS.options(name)]
    assert not options or "Args:" in text
    missing = [option for option in options if f"{option}:" not in text and f"{option}," not in text]
    assert not missing


@every_name
def test_presets_name_real_options(name: str) -> None:
    known = {option.name for option in ALGORITHMS.options(name)}
    for preset in ALGORITHMS.get(name).presets.values():
        assert preset.keys() <= known


@every_name
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_bad_numbers_are_refused_by_name(name: str, value: float) -> None:
    numbers = [o.name for o in ALGORITHMS.options(name) if isinstance(o.default, float) or o.type == "float"]
    for number in numbers:
        allowed = (name, number) in {("term", "alpha"), ("term", "tau")} and math.isfinite(value)
        if not allowed:
            with pytest.raises(ConfigError, match=number):
                ALGORITHMS.make(name, {**REQUIRED.get(name, {}), number: value})


def test_what_the_server_must_see_of_a_client() -> None:
    privacy = {name: ALGORITHMS.make(name, REQUIRED.get(name, {})).privacy for name in ALGORITHMS.names()}
    assert privacy["fedavg"] == privacy["local-only"] == "sums"
    assert privacy["propfair"] == privacy["alpha-fair"] == "losses"
    assert privacy["afl"] == privacy["term"] == privacy["gifair"] == privacy["delta-fl"] == "losses"
    for options in ({"placement": "update"}, {"placement": "step"}, {"preset": "paper"}):
        assert ALGORITHMS.make("propfair", options).privacy == "sums"
    assert privacy["q-fedavg"] == privacy["fedmgda+"] == privacy["fedfv"] == privacy["nash-mtl"] == "updates"


def test_the_default_order_is_empty() -> None:
    assert order_for(ALGORITHMS.make("fedavg"), 3, {}) == Order()
    assert ALGORITHMS.make("fedavg").order is None

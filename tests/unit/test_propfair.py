import dataclasses
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from propfair.algorithms import ALGORITHMS, Algorithm, Cohort, Needs, Order, State
from propfair.algorithms.alpha_fair import AlphaFair
from propfair.algorithms.base import as_floats, order_for
from propfair.algorithms.loss import PropFairLoss
from propfair.algorithms.propfair import WORST_OFF, PropFair
from propfair.core.client import observe, transformed
from propfair.errors import ConfigError
from propfair.registry import fields_of
from propfair.runs.names import algorithm_label

LOSS = torch.tensor([0.5, 1.0, 2.0])
COHORT = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0])
PLAIN: dict[str, Any] = {"beta": 0.0, "weighting": "samples"}  # nothing is kept, and shares are those of COHORT


def paper(**options: Any) -> Algorithm:
    return ALGORITHMS.make("propfair", {"preset": "paper", **options})


def weigh(fair: Algorithm, cohort: Cohort = COHORT, state: State | None = None) -> Tensor:
    return fair.weigh(cohort, fair.init(cohort.share) if state is None else state)[0]


def after_a_round(fair: Algorithm, cohort: Cohort = COHORT) -> State:
    """The state when the clients have reported the losses of the cohort."""
    seen = dataclasses.replace(cohort, observed={"loss": cohort.loss})
    return fair.learn(seen, fair.weigh(seen, fair.init(cohort.share))[1])


def test_presets_leave_nothing_to_defaults_that_may_change() -> None:
    published = {"M": 5.0, "placement": "step", "weighting": "samples", "epsilon": 0.2, "normalise": False}
    for name, variant in (("paper", "practical"), ("original", "huber")):
        assert dict(PropFair.presets[name]) == {**published, "variant": variant}
    loss = LOSS.clone().requires_grad_()
    slopes = torch.autograd.grad(transformed(paper(M=2.0), loss, Order()).sum(), loss)[0]
    assert slopes.tolist() == pytest.approx([2 / 3, 1, 1 / 2])
    assert torch.equal(weigh(paper()), COHORT.share)
    assert paper().order is None
    assert paper().init(COHORT.share) == {}


def test_one_baseline_for_each_client_reaches_the_client_in_its_order() -> None:
    fair = paper(M=(2.0, 3.0, 4.0))
    for client, M in enumerate((2.0, 3.0, 4.0)):
        order = order_for(fair, client, {})
        assert torch.equal(transformed(fair, LOSS, order), transformed(paper(M=M), LOSS, Order()))
        assert observe(fair, LOSS, order) == observe(paper(M=M), LOSS, Order())


def test_baselines_must_fit_the_clients() -> None:
    with pytest.raises(ConfigError, match="one for each of the 3 clients; got 2 numbers"):
        PropFair(M=(2.0, 3.0)).init(COHORT.share)
    with pytest.raises(ConfigError, match="M must be one number"):
        PropFair(M=())
    with pytest.raises(ConfigError, match="epsilon must satisfy"):
        PropFair(M=(5.0, 0.1))
    with pytest.raises(ConfigError, match="ratio must be above 1"):
        PropFair(ratio=1.0)
    with pytest.raises(ConfigError, match="normalise=false is for a given M"):
        paper(M="auto")
    with pytest.raises(ConfigError, match="M='schedule' is for placement='step'"):
        PropFair(M="schedule")


@pytest.mark.parametrize(("past", "before", "after"), [(0.0, 10.0, 9.0), (0.1, 10.0, 10.0), (0.0, 2.1, 2.0)])
def test_the_schedule_is_lowered_only_when_no_batch_is_past_the_threshold(
    past: float, before: float, after: float
) -> None:
    fair = paper(M="schedule")
    seen = dataclasses.replace(COHORT, observed={"past_threshold": as_floats([0.0, 0.0, past])})
    assert fair.init(COHORT.share)["M"].tolist() == [10.0]
    state = fair.learn(seen, {"M": as_floats([before])})
    assert order_for(fair, 1, state).numbers == {"M": pytest.approx(after)}


def test_options_of_the_first_version_mean_what_they_meant() -> None:
    old = {"name": "propfair", "M": "auto", "epsilon": 0.2, "variant": "practical"}
    assert algorithm_label(old) == "propfair(preset=paper, M=schedule)"
    alpha = {"alpha": 2.0, "placement": "client", "M": 3.0, "epsilon": 0.2, "variant": "huber"}
    assert ALGORITHMS.make("alpha-fair", AlphaFair.as_named_today(alpha)) == AlphaFair(
        alpha=2.0, M=3.0, placement="step", weighting="samples", normalise=False
    )
    on_server = AlphaFair.as_named_today({**alpha, "placement": "server"})
    assert ALGORITHMS.make("alpha-fair", on_server).init(COHORT.share) == {}, "nothing was kept between rounds"
    today = fields_of(PropFair(M=2.0))
    assert PropFair.as_named_today(today) == today
    assert algorithm_label({"name": "propfair", **today}) == "propfair(M=2.0)"


def test_what_a_client_records() -> None:
    found = observe(paper(M=2.0), LOSS, Order())
    assert found["past_threshold"] == pytest.approx(1 / 3)
    assert found["slope"] == pytest.approx((2 / 3 + 1 + 1 / 2) / 3)


def test_weights_are_the_dual_weights_of_the_paper() -> None:
    expected = COHORT.share / (3.0 - COHORT.loss)
    assert torch.allclose(weigh(PropFair(M=3.0, **PLAIN)), expected / expected.sum())
    each = COHORT.share / (as_floats([3.0, 4.0, 5.0]) - COHORT.loss)
    assert torch.allclose(weigh(PropFair(M=(3.0, 4.0, 5.0), **PLAIN)), each / each.sum())
    by_head = 1 / (3.0 - COHORT.loss)
    assert torch.allclose(weigh(PropFair(M=3.0, beta=0.0)), by_head / by_head.sum())


@given(ratio=st.floats(1.01, 100), loss=st.lists(st.floats(0, 50), min_size=2, max_size=6))
def test_the_worst_off_counts_so_many_times_a_client_at_the_mean(ratio: float, loss: list[float]) -> None:
    cohort = Cohort.of(share=[1 / (len(loss) + 1)] * (len(loss) + 1), loss=[*loss, sum(loss) / len(loss)])
    weights = weigh(PropFair(ratio=ratio, **PLAIN), cohort)
    assert float(weights.sum()) == pytest.approx(1)
    relative = weights / weights[-1]  # of the client at the mean
    assert float(relative.max()) <= ratio * (1 + 1e-6)
    if max(loss) - min(loss) > 1e-3:
        assert float(relative[cohort.loss.argmax()]) == pytest.approx(ratio, rel=1e-6)


def test_the_baseline_of_a_round_is_in_the_record() -> None:
    fair = PropFair(ratio=3.0, **PLAIN)
    weights, state = fair.weigh(COHORT, fair.init(COHORT.share))
    M = fair.diagnose(COHORT, weights, state)["M"]
    mean = float(COHORT.share @ COHORT.loss)
    assert pytest.approx(2.0 + (2.0 - mean) / 2) == M
    assert torch.allclose(weights, weigh(PropFair(M=M, **PLAIN)))


def test_clients_with_the_same_loss_count_alike() -> None:
    alike = Cohort.of(share=[0.5, 0.3, 0.2], loss=[1.7] * 3)
    assert torch.allclose(weigh(PropFair(**PLAIN), alike), alike.share)
    assert weigh(PropFair(), alike).tolist() == pytest.approx([1 / 3] * 3)
    assert weigh(PropFair(), Cohort.of(share=[1.0], loss=[4.0])).tolist() == [1.0]


def test_slopes_are_means_over_rounds() -> None:
    """Each round counts beta times as much as the next, from the first on: nothing pulls towards the shares."""
    fair, at_once = PropFair(beta=0.9, weighting="samples"), PropFair(**PLAIN)
    state, logs = fair.init(COHORT.share), []
    for loss in ([0.5, 1.0, 2.0], [0.4, 0.9, 1.2], [1.5, 0.2, 0.3], [0.1, 0.2, 0.9]):
        cohort = dataclasses.replace(COHORT, loss=as_floats(loss))
        weights, state = fair.weigh(cohort, state)
        logs.append((weigh(at_once, cohort) / COHORT.share).log())
        ages = as_floats([0.9**age for age in reversed(range(len(logs)))])
        mean = (ages / ages.sum()) @ torch.stack(logs)
        assert torch.allclose(weights, torch.softmax(COHORT.share.log() + mean, 0))
    part = Cohort.of(share=[0.4, 0.6], loss=[0.1, 0.9], clients=(0, 1))
    _, later = fair.weigh(part, state)
    assert later["log_slope"][2] == state["log_slope"][2], "absent clients stay as they were"
    assert later["num_rounds"].tolist() == [5, 5, 4]


def test_of_many_clients_the_worst_tenth_are_the_worst_off() -> None:
    """One client beyond all others does not flatten the weights of the rest, and counts for no more than its like."""
    loss = [*([1.0] * 27), 2.0, 4.0, 30.0]
    weights = weigh(PropFair(ratio=3.0, **PLAIN), Cohort.of(share=[1 / 30] * 30, loss=loss))
    mean, worst = sum(loss) / 30, 12.0
    M = worst + (worst - mean) / 2
    expected = as_floats([1 / (M - min(one, worst)) for one in loss])
    assert torch.allclose(weights, expected / expected.sum())
    few = weigh(PropFair(ratio=3.0, **PLAIN), Cohort.of(share=[1 / 19] * 19, loss=loss[11:]))
    mean = sum(loss[11:]) / 19
    assert float(few[-1] / few[0]) == pytest.approx((30 + (30 - mean) / 2 - 1) / ((30 - mean) / 2))


def one_client(fair: PropFair, losses: list[float], told: list[tuple[float, float]]) -> float:
    """The factor on its update that a client computes for placement="update" from its own losses."""
    logs = []
    for loss, (mean, spread) in zip(losses, told, strict=True):
        baseline = fair._baseline(mean, spread)
        logs.append(math.log(baseline.scale / max(float(baseline.M) - loss, baseline.epsilon)))
    ages = [fair.beta**age for age in reversed(range(len(logs)))]
    return math.exp(sum(age * log for age, log in zip(ages, logs, strict=True)) / sum(ages))


@pytest.mark.parametrize("options", [{}, {"M": 2.5}, {"weighting": "samples", "beta": 0.5}], ids=str)
def test_on_the_update_clients_and_sums_can_do_it_all(options: dict[str, Any]) -> None:
    fair = PropFair(placement="update", **options)
    assert fair.needs == Needs.OWN_LOSS
    assert fair.privacy == "sums"
    state = fair.init(COHORT.share)
    share = COHORT.shares(fair.weighting)
    assert torch.allclose(weigh(fair, state=state), share), "in the first round nothing is known"
    told: list[tuple[float, float]] = []
    rounds = [COHORT.loss, as_floats([0.4, 0.9, 1.2]), as_floats([0.5, 0.2, 1.9])]
    for number, loss in enumerate(rounds):
        cohort = dataclasses.replace(COHORT, loss=loss)
        weights, state = fair.weigh(cohort, state)
        state = fair.learn(cohort, state)
        if told:
            own = torch.stack(rounds[1 : number + 1]).T.tolist()  # the losses of each client since something is known
            factors = as_floats([one_client(fair, losses, told) for losses in own])
            expected = share * factors / (share @ factors)  # the two sums of the updates
            assert torch.allclose(weights, expected)
        first, second = float(share @ loss), float(share @ loss.square())  # the two sums of the losses
        told.append((first, WORST_OFF * math.sqrt(second - first**2)))


def test_on_the_step_slopes_are_one_at_the_mean_loss_of_the_round_before() -> None:
    for options in ({}, {"M": 3.0}, {"M": (2.5, 3.0, 3.5)}):
        fair = PropFair(placement="step", weighting="samples", **options)
        assert fair.privacy == "sums"
        first = order_for(fair, 1, fair.init(COHORT.share))
        assert transformed(fair, LOSS, first).tolist() == pytest.approx(LOSS.tolist()), "nothing is known yet"
        order = order_for(fair, 1, after_a_round(fair))
        loss = as_floats([0.1, float(COHORT.share @ COHORT.loss), 2.0]).requires_grad_()
        slopes = torch.autograd.grad(transformed(fair, loss, order).sum(), loss)[0]
        assert float(slopes[1]) == pytest.approx(1)
        assert float(slopes[0]) < 1 < float(slopes[2])
        assert observe(fair, loss.detach(), order)["slope"] == pytest.approx(float(slopes.mean()))
        assert observe(fair, loss.detach(), order)["loss"] == pytest.approx(float(loss.detach().mean()))


def test_one_full_batch_step_gives_the_same_direction_wherever_the_slope_acts() -> None:
    options: dict[str, Any] = {"alpha": 1.5, "M": (3.0, 4.0, 5.0), **PLAIN}
    fair = {where: AlphaFair(placement=where, **options) for where in ("server", "update", "step")}
    state = after_a_round(fair["step"])
    orders = [order_for(fair["step"], k, state) for k in range(3)]
    slopes = as_floats([observe(fair["step"], COHORT.loss[k : k + 1], orders[k])["slope"] for k in range(3)])
    both = COHORT.share * slopes
    for where in ("server", "update"):
        weights = weigh(fair[where], state=after_a_round(fair[where]))
        assert torch.allclose(weights, both / both.sum())
        assert fair[where].objective is None
        assert fair[where].watch is None
    assert fair["step"].needs == Needs.NOTHING


@pytest.mark.parametrize("variant", ["practical", "huber"])
@pytest.mark.parametrize("placement", ["server", "update", "step"])
def test_alpha_one_is_propfair(placement: str, variant: str) -> None:
    options = {"M": 3.0, "variant": variant, "placement": placement}
    alpha, plain = ALGORITHMS.make("alpha-fair", {"alpha": 1.0, **options}), ALGORITHMS.make("propfair", options)
    assert torch.equal(weigh(alpha), weigh(plain))
    order = order_for(plain, 0, after_a_round(plain))
    assert torch.equal(transformed(alpha, LOSS, order), transformed(plain, LOSS, order))
    assert observe(alpha, LOSS, order) == observe(plain, LOSS, order)


def test_alpha_zero_is_fedavg() -> None:
    loss = LOSS.clone().requires_grad_()
    on_step = AlphaFair(alpha=0.0, M=1.5, placement="step")
    order = order_for(on_step, 0, after_a_round(on_step))
    assert torch.autograd.grad(transformed(on_step, loss, order).sum(), loss)[0].tolist() == [1, 1, 1]
    assert weigh(AlphaFair(alpha=0.0, **PLAIN)).tolist() == pytest.approx([0.5, 0.3, 0.2])


def test_alpha_two_is_the_harmonic_mean_of_utilities() -> None:
    u = 4.0 - COHORT.loss
    weights = weigh(AlphaFair(alpha=2.0, M=4.0, **PLAIN))
    loss = COHORT.loss.clone().requires_grad_()
    harmonic = 1 / (COHORT.share @ (1 / (4.0 - loss)))
    gradient = -torch.autograd.grad(harmonic, loss)[0]
    assert torch.allclose(weights, gradient / gradient.sum())
    assert torch.allclose(weights, COHORT.share / u**2 / (COHORT.share @ u**-2))


def test_a_large_alpha_looks_at_the_worst_client_only() -> None:
    assert weigh(AlphaFair(alpha=200.0, M=4.0, **PLAIN)).tolist() == pytest.approx([0, 0, 1], abs=1e-12)


def test_clients_past_the_baseline_still_count() -> None:
    cohort = Cohort.of(share=[0.5, 0.5], loss=[0.5, 50.0])
    assert weigh(PropFair(M=2.0, variant="practical", **PLAIN), cohort).tolist() == pytest.approx([4 / 7, 3 / 7])
    assert weigh(PropFair(M=2.0, variant="huber", **PLAIN), cohort).tolist() == pytest.approx([2 / 17, 15 / 17])


@pytest.mark.parametrize("variant", ["practical", "huber"])
@pytest.mark.parametrize("alpha", [0.0, 1.0, 100.0, 1e4])
def test_no_order_of_fairness_overflows_on_the_server(alpha: float, variant: str) -> None:
    cohort = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 6.0])
    weights = weigh(ALGORITHMS.make("alpha-fair", {"alpha": alpha, "M": 5.0, "variant": variant, **PLAIN}), cohort)
    assert float(weights.sum()) == pytest.approx(1)
    if alpha == 1e4:
        assert weights.tolist() == [0, 1, 0] if variant == "practical" else [0, 0, 1]


def test_an_order_of_fairness_too_steep_for_float32_is_refused_on_the_step() -> None:
    with pytest.raises(ConfigError, match=r"slopes up to 3. Use placement='server', or an alpha of at most 73"):
        AlphaFair(alpha=100.0, placement="step")
    with pytest.raises(ConfigError, match=r"slopes up to 5. Use placement='server', or an alpha of at most 50"):
        AlphaFair(alpha=100.0, placement="step", M=2.0, normalise=False)
    with pytest.raises(ConfigError, match=r"slopes up to 10. Use placement='server', or an alpha of at most 35"):
        AlphaFair(alpha=100.0, placement="step", M=2.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("options", [{"preset": "paper"}, {"preset": "original"}, {"placement": "step"}], ids=str)
def test_gradients_are_finite_for_every_finite_loss(dtype: torch.dtype, options: dict[str, Any]) -> None:
    largest = torch.finfo(dtype).max
    loss = torch.tensor([-largest, -1.0, 0.0, 4.8, 4.81, 5.0, 6e4, largest], dtype=dtype, requires_grad=True)
    fair = ALGORITHMS.make("propfair", options)
    order = order_for(fair, 0, after_a_round(fair))
    gradient = torch.autograd.grad(transformed(fair, loss, order).sum(), loss)[0]
    assert gradient.isfinite().all()
    assert (gradient >= 0).all()


def test_the_loss_for_any_loop_keeps_the_meaning_of_a_learning_rate() -> None:
    def slope(criterion: nn.Module, loss: float) -> float:
        at = torch.tensor([loss], requires_grad=True)
        return float(torch.autograd.grad(criterion(at, torch.zeros(1)), at)[0])

    fair = PropFairLoss(nn.L1Loss(), M=5.0)
    assert [slope(fair, loss) for loss in (1e-6, 1.0, 2.5, 4.9)] == pytest.approx([1, 5 / 4, 2, 1], rel=1e-4)
    published = PropFairLoss(nn.L1Loss(), M=5.0, normalise=False)
    for loss in (0.5, 3.0, 4.9):
        assert slope(fair, loss) == pytest.approx(5 * slope(published, loss))
        expected = transformed(paper(M=5.0), torch.tensor(loss), Order())
        assert float(published(torch.tensor([loss]), torch.zeros(1))) == pytest.approx(float(expected))
    assert "normalise=True" in repr(fair)
    with pytest.raises(ConfigError, match="reduction='mean'"):
        PropFairLoss(nn.L1Loss(reduction="none"))(torch.ones(2), torch.zeros(2))

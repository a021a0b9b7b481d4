import pytest
import torch

from propfair.algorithms import ALGORITHMS, Cohort, Needs, Order
from propfair.algorithms.alpha_fair import AlphaFair
from propfair.algorithms.base import as_floats, order_for
from propfair.algorithms.propfair import PropFair
from propfair.core.client import observe, transformed
from propfair.errors import ConfigError

LOSS = torch.tensor([0.5, 1.0, 2.0])
COHORT = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0])


def test_presets() -> None:
    paper, original = (
        ALGORITHMS.make("propfair", {"preset": "paper"}),
        ALGORITHMS.make("propfair", {"preset": "original"}),
    )
    assert paper == PropFair(variant="practical", epsilon=0.2)
    assert original == PropFair(variant="huber", epsilon=0.2)


def test_one_baseline_for_each_client_reaches_the_client_in_its_order() -> None:
    propfair = PropFair(M=(2.0, 3.0, 4.0))
    for client, M in enumerate((2.0, 3.0, 4.0)):
        order = order_for(propfair, client, {})
        assert torch.equal(transformed(propfair, LOSS, order), transformed(PropFair(M=M), LOSS, Order()))
        assert observe(propfair, LOSS, order) == observe(PropFair(M=M), LOSS, Order())


def test_baselines_must_fit_the_clients() -> None:
    with pytest.raises(ConfigError, match="one for each of the 3 clients; got 2 numbers"):
        PropFair(M=(2.0, 3.0)).init(COHORT.share)
    with pytest.raises(ConfigError, match="M must be one number"):
        PropFair(M=())
    with pytest.raises(ConfigError, match="epsilon must satisfy"):
        PropFair(M=(5.0, 0.1))
    assert PropFair(M=(2.0, 3.0, 4.0)).init(COHORT.share) == {}


def test_what_a_client_records() -> None:
    found = observe(PropFair(M=2.0), LOSS, Order())
    assert found["past_threshold"] == pytest.approx(1 / 3)
    assert found["slope"] == pytest.approx((2 / 3 + 1 + 1 / 2) / 3)


@pytest.mark.parametrize("variant", ["practical", "huber"])
def test_alpha_one_is_propfair(variant: str) -> None:
    options = {"M": 3.0, "variant": variant}
    alpha, plain = ALGORITHMS.make("alpha-fair", {"alpha": 1.0, **options}), ALGORITHMS.make("propfair", options)
    assert torch.equal(transformed(alpha, LOSS, Order()), transformed(plain, LOSS, Order()))
    assert observe(alpha, LOSS, Order()) == observe(plain, LOSS, Order())


def test_alpha_zero_is_fedavg() -> None:
    loss = LOSS.clone().requires_grad_()
    gradient = torch.autograd.grad(transformed(AlphaFair(alpha=0.0, M=1.5), loss, Order()).sum(), loss)[0]
    assert gradient.tolist() == [1, 1, 1]
    assert AlphaFair(alpha=0.0, placement="server").weigh(COHORT, {})[0].tolist() == pytest.approx([0.5, 0.3, 0.2])


def test_alpha_two_is_the_harmonic_mean_of_utilities() -> None:
    u = 4.0 - COHORT.loss
    weights, _ = AlphaFair(alpha=2.0, M=4.0, placement="server").weigh(COHORT, {})
    loss = COHORT.loss.clone().requires_grad_()
    harmonic = 1 / (COHORT.share @ (1 / (4.0 - loss)))
    gradient = -torch.autograd.grad(harmonic, loss)[0]
    assert torch.allclose(weights, gradient / gradient.sum())
    assert torch.allclose(weights, COHORT.share / u**2 / (COHORT.share @ u**-2))


def test_a_large_alpha_looks_at_the_worst_client_only() -> None:
    weights, _ = AlphaFair(alpha=200.0, M=4.0, placement="server").weigh(COHORT, {})
    assert weights.tolist() == pytest.approx([0, 0, 1], abs=1e-12)


def test_one_full_batch_step_gives_the_same_direction_on_either_side() -> None:
    options = {"alpha": 1.5, "M": (3.0, 4.0, 5.0)}
    client, server = AlphaFair(**options), AlphaFair(**options, placement="server")  # type: ignore[arg-type]
    slopes = as_floats([observe(client, COHORT.loss[k : k + 1], order_for(client, k, {}))["slope"] for k in range(3)])
    both = COHORT.share * slopes
    assert torch.allclose(server.weigh(COHORT, {})[0], both / both.sum())
    assert server.needs == Needs.LOSS
    assert client.needs == Needs.NOTHING
    assert server.objective is None


def test_clients_past_the_baseline_still_count() -> None:
    cohort = Cohort.of(share=[0.5, 0.5], loss=[0.5, 50.0])
    practical, _ = AlphaFair(alpha=1.0, M=2.0, placement="server").weigh(cohort, {})
    huber, _ = AlphaFair(alpha=1.0, M=2.0, placement="server", variant="huber").weigh(cohort, {})
    assert practical.tolist() == pytest.approx([4 / 7, 3 / 7])
    assert huber.tolist() == pytest.approx([2 / 17, 15 / 17])


@pytest.mark.parametrize("variant", ["practical", "huber"])
@pytest.mark.parametrize("alpha", [0.0, 1.0, 100.0, 1e4])
def test_no_order_of_fairness_overflows_on_the_server(alpha: float, variant: str) -> None:
    cohort = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 6.0])
    fair = ALGORITHMS.make("alpha-fair", {"alpha": alpha, "placement": "server", "variant": variant})
    weights, _ = fair.weigh(cohort, {})
    assert float(weights.sum()) == pytest.approx(1)
    if alpha == 1e4:
        assert weights.tolist() == [0, 1, 0] if variant == "practical" else [0, 0, 1]


def test_an_order_of_fairness_too_steep_for_float32_is_refused_on_the_client() -> None:
    with pytest.raises(ConfigError, match=r"alpha=100.0. Use placement='server', or an alpha of at most 50"):
        AlphaFair(alpha=100.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("variant", ["practical", "huber"])
def test_gradients_are_finite_for_every_finite_loss(dtype: torch.dtype, variant: str) -> None:
    largest = torch.finfo(dtype).max
    loss = torch.tensor([-largest, -1.0, 0.0, 4.8, 4.81, 5.0, 6e4, largest], dtype=dtype, requires_grad=True)
    fair = ALGORITHMS.make("propfair", {"variant": variant})
    gradient = torch.autograd.grad(transformed(fair, loss, Order()).sum(), loss)[0]
    assert gradient.isfinite().all()
    assert (gradient >= 0).all()

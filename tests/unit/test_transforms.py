import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from propfair.algorithms.transforms import Variant, check_baseline, negative_utility, slope
from propfair.errors import ConfigError

GRID = torch.linspace(0, 6, 601, dtype=torch.float64)
VARIANTS: list[Variant] = ["practical", "huber"]
every_variant = pytest.mark.parametrize("variant", VARIANTS)
every_alpha = pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 2.0, 5.0])


def gradient(loss: Tensor, M: float, epsilon: float, variant: Variant, alpha: float) -> Tensor:
    loss = loss.clone().requires_grad_()
    return torch.autograd.grad(negative_utility(loss, M, epsilon, variant, alpha).sum(), loss)[0]


@every_alpha
@every_variant
@given(M=st.floats(0.5, 10), part=st.floats(0.01, 1), loss=st.floats(0, 20))
def test_the_slope_is_the_gradient(variant: Variant, alpha: float, M: float, part: float, loss: float) -> None:
    t = torch.tensor([loss], dtype=torch.float64)
    assert torch.allclose(gradient(t, M, part * M, variant, alpha), slope(t, M, part * M, variant, alpha))


@every_alpha
@every_variant
def test_it_is_continuous_and_increasing(variant: Variant, alpha: float) -> None:
    step = negative_utility(GRID, 2.0, 0.2, variant, alpha).diff()
    assert (step > 0).all()
    assert step.max() <= 0.01 * 0.2**-alpha * (1 + 1e-9)  # nowhere steeper than at the threshold


@every_alpha
def test_huber_is_convex_and_practical_is_as_steep_past_the_threshold_as_at_no_loss(alpha: float) -> None:
    assert (negative_utility(GRID, 2.0, 0.2, "huber", alpha).diff().diff() > -1e-9).all()
    past = slope(torch.tensor([0.0, 1.9, 5.0]), 2.0, 0.2, "practical", alpha)
    assert past.tolist() == pytest.approx([2.0**-alpha] * 3)


@every_variant
def test_epsilon_equal_to_m_is_averaging_at_another_learning_rate(variant: Variant) -> None:
    assert slope(GRID[1:], 4.0, 4.0, variant).tolist() == pytest.approx([0.25] * 600)


@every_variant
@every_alpha
def test_a_large_m_is_averaging_at_another_learning_rate(variant: Variant, alpha: float) -> None:
    assert (slope(GRID, 1e6, 0.2, variant, alpha) * 1e6**alpha).tolist() == pytest.approx([1] * 601, abs=1e-4)


def test_no_loss_has_no_value_in_the_practical_variant() -> None:
    for alpha in (0.0, 0.5, 1.0, 2.0):
        assert negative_utility(torch.zeros(1), 3.0, 0.2, "practical", alpha).item() == pytest.approx(0, abs=1e-6)


def test_orders_of_fairness_meet_at_one() -> None:
    near = negative_utility(GRID, 8.0, 0.2, "practical", 1 + 1e-6)
    assert torch.allclose(near, negative_utility(GRID, 8.0, 0.2, "practical", 1.0), atol=1e-5)


def test_order_zero_is_the_loss_itself() -> None:
    assert torch.allclose(negative_utility(GRID, 2.0, 0.2, "practical", 0.0), GRID)


@every_variant
def test_the_threshold_itself_is_on_the_logarithm(variant: Variant) -> None:
    assert slope(torch.tensor([1.75]), 2.0, 0.25, variant).item() == pytest.approx(4)
    assert gradient(torch.tensor([1.75], dtype=torch.float64), 2.0, 0.25, variant, 1.0).item() == pytest.approx(4)


@every_variant
@pytest.mark.parametrize("loss", [1.8, 2.0, 2.2, 1e6, 1e30, -3.0])
def test_gradients_are_finite_past_the_domain_of_the_logarithm(variant: Variant, loss: float) -> None:
    assert gradient(torch.tensor([loss]), 2.0, 0.2, variant, 1.0).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    assert negative_utility(torch.tensor([1.0], dtype=dtype), 2.0, 0.2).dtype == torch.float32


def test_a_loss_that_is_not_a_number_stays_one() -> None:
    assert negative_utility(torch.tensor([math.nan]), 2.0, 0.2).isnan().all()


def test_one_baseline_for_each_loss() -> None:
    M = torch.tensor([2.0, 4.0])
    assert slope(torch.tensor([1.0, 1.0]), M, 0.2).tolist() == pytest.approx([1, 1 / 3])
    both = negative_utility(torch.tensor([1.0, 1.0]), M, 0.2, "practical", 2.0)
    assert both.tolist() == pytest.approx([1 - 1 / 2, 1 / 3 - 1 / 4])


@pytest.mark.parametrize(
    ("M", "epsilon", "named"),
    [(0.0, 0.2, "M"), (-1, 0.2, "M"), (math.inf, 0.2, "M"), (2, 0, "epsilon"), (2, 3, "epsilon")],
)
def test_the_domain(M: float, epsilon: float, named: str) -> None:
    with pytest.raises(ConfigError, match=f"{named} must"):
        check_baseline(M, epsilon)

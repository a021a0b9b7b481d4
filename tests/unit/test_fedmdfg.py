import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from propfair.algorithms import Cohort
from propfair.algorithms.base import PastRows, as_floats
from propfair.algorithms.fedmdfg import FedMDFG
from propfair.algorithms.fedmgda import FedMGDAPlus

DELTAS = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [-1.0, 1.0, 1.0]]
LOSS = [0.5, 1.0, 2.0]
COHORT = Cohort.of(share=[0.5, 0.3, 0.2], loss=LOSS, deltas=DELTAS)


def by_formula(theta: float) -> list[float]:
    """The step of the first paper's code, less its line search, with a general solver."""
    updates, loss = np.array(DELTAS), np.array(LOSS)
    lengths = np.linalg.norm(updates, axis=1)
    updates = updates / lengths[:, None] * lengths.mean()
    fair, direction = np.ones(3) / 3**0.5, loss / np.linalg.norm(loss)
    vectors = updates
    if math.degrees(math.acos(direction @ fair)) > theta:
        h = fair @ direction * direction - fair
        vectors = np.vstack([updates, h / np.linalg.norm(h) @ updates])
    size = len(vectors)
    found = minimize(
        lambda x: np.square(x @ vectors).sum(), np.full(size, 1 / size), bounds=[(0, 1)] * size,
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1}, options={"ftol": 1e-16, "maxiter": 1000},
    )  # fmt: skip
    d = found.x @ vectors
    step: list[float] = (d / np.linalg.norm(d) * np.linalg.norm(updates.mean(0))).tolist()
    return step


@pytest.mark.parametrize("theta", [0.0, 11.25, 60.0])
def test_it_is_the_formula(theta: float) -> None:
    step = FedMDFG(theta=theta).weigh(COHORT, {})[0] @ as_floats(DELTAS)
    assert step.tolist() == pytest.approx(by_formula(theta), abs=1e-5)


def test_guidance_starts_at_the_angle() -> None:
    """cos = 3.5 / (sqrt 3 sqrt 5.25), 28.1 degrees."""
    weights, _ = FedMDFG().weigh(COHORT, {})
    assert FedMDFG().diagnose(COHORT, weights, {})["angle"] == pytest.approx(28.1255, abs=1e-3)
    plain, guided = FedMDFG(theta=28.2).weigh(COHORT, {})[0], FedMDFG(theta=28.0).weigh(COHORT, {})[0]
    assert not torch.allclose(plain, guided, atol=1e-2)


def test_a_guided_step_lessens_the_angle() -> None:
    """To first order: losses change by -<delta_k, d> where all clients took one step of the same length."""
    step = FedMDFG().weigh(COHORT, {})[0] @ as_floats(DELTAS)
    units = torch.nn.functional.normalize(as_floats(DELTAS))
    after = as_floats(LOSS) - 1e-4 * units @ step
    cosines = [float(f.sum() / f.norm()) for f in (as_floats(LOSS), after)]
    assert cosines[1] > cosines[0]
    assert (after < as_floats(LOSS)).all()


def test_without_guidance_it_is_mgda_on_directions() -> None:
    step = FedMDFG(theta=90.0).weigh(COHORT, {})[0]
    other = FedMGDAPlus(epsilon=1.0).weigh(COHORT, {})[0]
    assert torch.allclose(step / step.norm(), other / other.norm(), atol=1e-6)


def test_equal_losses_need_no_guidance() -> None:
    equal = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.7] * 3, deltas=DELTAS)
    assert torch.equal(FedMDFG().weigh(equal, {})[0], FedMDFG(theta=90.0).weigh(equal, {})[0])


def test_clients_of_the_round_before_are_not_forgotten() -> None:
    """Without the absent client the step would go against its update; with it the step is orthogonal at worst."""
    deltas, gone = [[1.0, 0.2, 0.0], [0.8, 1.0, 0.3]], [-1.0, 0.4, 1.0]
    alone = Cohort.of(share=[0.5, 0.5], loss=[1.0, 1.0], deltas=deltas)
    past = PastRows(clients=(7,), rounds=(1,), num_steps=(1.0,))
    both = Cohort.of(share=[0.5, 0.5], loss=[1.0, 1.0], deltas=[*deltas, gone], past=past)
    assert float(FedMDFG().weigh(alone, {})[0] @ as_floats(deltas) @ as_floats(gone)) < -0.1
    weights = FedMDFG().weigh(both, {})[0]
    step = weights @ as_floats([*deltas, gone])
    assert weights.shape == (3,)
    assert (as_floats([*deltas, gone]) @ step > 0.01).all()
    assert FedMDFG().remember == 1

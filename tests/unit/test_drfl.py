import pytest

from propfair.algorithms import Cohort, Needs
from propfair.algorithms.drfl import DRFL
from propfair.algorithms.qfedavg import QFedAvg

COHORT = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0])


def test_by_hand() -> None:
    assert DRFL().weigh(COHORT, {})[0].tolist() == pytest.approx([0.25 / 0.95, 0.3 / 0.95, 0.4 / 0.95])
    assert DRFL(weighting="none").weigh(COHORT, {})[0].tolist() == pytest.approx([1 / 7, 2 / 7, 4 / 7])


@pytest.mark.parametrize("q", [0.0, 0.5, 3.0])
def test_it_is_q_fedavg_without_damping(q: float) -> None:
    expected = QFedAvg(q=q, damping=False).weigh(COHORT, {})[0]
    assert DRFL(q=q).weigh(COHORT, {})[0].tolist() == expected.tolist()
    assert DRFL(q=q).needs == (Needs.LOSS if q else Needs.NOTHING)

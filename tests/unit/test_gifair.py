import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from propfair.algorithms import Cohort
from propfair.algorithms.base import as_floats, order_for
from propfair.algorithms.gifair import GIFAIR
from propfair.errors import ConfigError

SHARE = as_floats([0.4, 0.3, 0.2, 0.1])
COHORT = Cohort.of(share=SHARE.tolist(), loss=[2.0, 0.5, 1.0, 0.7])


@given(
    losses=st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=4, max_size=4),
    coeff=st.floats(0, 1),
    groups=st.none() | st.lists(st.integers(0, 2), min_size=4, max_size=4).map(tuple),
)
def test_weights_are_the_gradient_of_the_objective_never_negative_and_sum_to_one(
    losses: list[float], coeff: float, groups: tuple[int, ...] | None
) -> None:
    gifair = GIFAIR(coeff=coeff, groups=groups)
    cohort = Cohort.of(share=SHARE.tolist(), loss=losses)
    weights, _ = gifair.weigh(cohort, gifair.init(SHARE))
    assert (weights >= -1e-12).all()
    assert float(weights.sum()) == pytest.approx(1)
    member = groups or (0, 1, 2, 3)
    names = sorted(set(member))
    sizes = {a: member.count(a) for a in names}
    means = {a: sum(f for f, b in zip(losses, member, strict=True) if a == b) / sizes[a] for a in names}
    bound = min(float(p) * sizes[a] for p, a in zip(SHARE, member, strict=True))
    lam = coeff * bound / (len(names) - 1) if len(names) > 1 else 0.0
    signs = {a: sum((means[a] > means[b]) - (means[a] < means[b]) for b in names) for a in names}
    expected = [float(p) + lam * signs[a] / sizes[a] for p, a in zip(SHARE, member, strict=True)]
    assert weights.tolist() == pytest.approx(expected)


def test_ties() -> None:
    cohort = Cohort.of(share=[0.25] * 4, loss=[1.0, 1.0, 0.0, 1.0], clients=(3, 1, 2, 0))
    equal, _ = GIFAIR(coeff=1).weigh(cohort, {})
    ordered, _ = GIFAIR(coeff=1, ties="argsort").weigh(cohort, {})
    lam = 0.25 / 3
    assert ((equal - 0.25) / lam).tolist() == pytest.approx([1, 1, -3, 1])
    assert ((ordered - 0.25) / lam).tolist() == pytest.approx([3, 1, -3, -1])  # by client: 0, 1, 3


def test_one_client_and_one_group_are_fedavg() -> None:
    assert GIFAIR(coeff=1).weigh(Cohort.of(share=[1.0], loss=[3.0]), {})[0].tolist() == [1]
    assert GIFAIR(coeff=1, groups=(0, 0, 0, 0)).weigh(COHORT, {})[0].tolist() == SHARE.tolist()
    assert GIFAIR(coeff=0).weigh(COHORT, {})[0].tolist() == SHARE.tolist()


def test_one_full_batch_step_gives_the_same_on_the_client_as_on_the_server() -> None:
    client, server = GIFAIR(coeff=0.7, side="client"), GIFAIR(coeff=0.7)
    weights, state = client.weigh(COHORT, client.init(SHARE))
    scales = as_floats([order_for(client, k, state).lr_scale for k in range(4)])
    assert torch.allclose(weights * scales, server.weigh(COHORT, {})[0])


def test_on_the_client_ranks_are_over_all_who_were_ever_seen() -> None:
    gifair = GIFAIR(coeff=1.0, side="client")
    state = gifair.init(SHARE)
    assert order_for(gifair, 2, state).lr_scale == 1  # nothing known in round 1
    _, state = gifair.weigh(Cohort.of(share=[0.6, 0.4], loss=[2.0, 1.0], clients=(1, 2)), state)
    _, state = gifair.weigh(Cohort.of(share=[1.0], loss=[0.5], clients=(0,)), state)
    assert state["loss"].tolist()[:3] == [0.5, 2.0, 1.0]
    assert order_for(gifair, 3, state).lr_scale == 1  # never seen
    lam = 0.2 / 2
    expected = [1 - 2 * lam / 0.4, 1 + 2 * lam / 0.3, 1.0]
    assert [order_for(gifair, k, state).lr_scale for k in range(3)] == pytest.approx(expected)


def test_bad_options() -> None:
    with pytest.raises(ConfigError, match="coeff must be in"):
        GIFAIR(coeff=1.1)
    with pytest.raises(ConfigError, match="groups must have one entry for each of 4 clients; got 3"):
        GIFAIR(coeff=0.5, groups=(0, 1, 1)).init(SHARE)
    with pytest.raises(ConfigError, match="weighting"):
        GIFAIR(coeff=0.5, weighting="uniform")

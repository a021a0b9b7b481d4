"""Data that needs no download."""

import pytest
import torch

from propfair.data import SOURCES, ArrayExamples, synthetic
from propfair.errors import ConfigError, MissingExtraError
from propfair.federation.federation import federate
from propfair.federation.partition import PARTITIONERS, Natural
from propfair.models import MODELS


def test_digits() -> None:
    digits = SOURCES.make("digits").load(None)
    assert len(digits) == 1797
    assert digits.num_classes == 10
    x = digits.inputs(torch.arange(1797))
    assert x.shape == (1797, 1, 8, 8)
    assert (float(x.min()), float(x.max())) == (0, 1)
    assert digits.labels is not None
    assert digits.labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_digits_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'propfair\[data\]'"):
        SOURCES.make("digits").load(None)


def test_synthetic_sizes_and_statistics() -> None:
    data = SOURCES.make("synthetic", {"num_users": 200, "samples_per_user": 50, "alpha": 0, "beta": 0}).load(None)
    x = data.inputs(torch.arange(len(data)))
    assert x.shape == (10_000, 60)
    within = x.view(200, 50, 60).var(1).mean(0)
    assert within.allclose(torch.arange(1, 61).pow(-1.2), rtol=0.1), "Sigma_jj = j^-1.2"
    assert abs(float(x.mean())) < 0.05
    assert data.labels is not None
    assert data.labels.bincount(minlength=10).min() > 500
    paper = federate(SOURCES.make("synthetic", {"num_users": 30}).load(None), Natural())
    assert (paper.train.lengths + paper.test.lengths).min() >= 50
    assert paper.num_clients == 30


def test_alpha_and_beta_set_clients_apart() -> None:
    def spread(**options: float) -> float:
        data = SOURCES.make("synthetic", {"num_users": 100, "samples_per_user": 20, **options}).load(None)
        return float(data.inputs(torch.arange(2000)).view(100, 20, 60).mean((1, 2)).std())

    assert spread(beta=0) < 0.3 < 0.8 < spread(beta=1) < spread(beta=5)


def test_synthetic_on_the_fly_equals_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    source = SOURCES.make("synthetic", {"num_users": 300, "samples_per_user": 7, "seed": 5})
    stored = source.load(None)
    monkeypatch.setattr(synthetic, "MAX_STORED_BYTES", 0)
    made = source.load(None)
    assert isinstance(made, synthetic.SyntheticExamples)
    assert not isinstance(stored, synthetic.SyntheticExamples)
    index = torch.randperm(2100, generator=torch.Generator().manual_seed(0))[:333]
    assert made.inputs(index).equal(stored.inputs(index))
    assert made.targets(index).equal(stored.targets(index))
    moved = made.with_tensors({name: tensor.clone() for name, tensor in made.tensors().items()})
    assert moved.inputs(index).equal(stored.inputs(index))


def test_a_user_does_not_depend_on_the_others() -> None:
    few, many = (SOURCES.make("synthetic", {"num_users": n, "samples_per_user": 5}).load(None) for n in (3, 400))
    index = torch.arange(15)
    assert few.inputs(index).equal(many.inputs(index))
    assert few.targets(index).equal(many.targets(index))


@pytest.mark.parametrize("options", [{"alpha": -1}, {"beta": float("inf")}, {"num_users": 0}, {"samples_per_user": -1}])
def test_bad_synthetic_options(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        SOURCES.make("synthetic", options)


@pytest.mark.parametrize("name", SOURCES.names())
def test_every_source_has_a_usable_protocol(name: str) -> None:
    protocol = SOURCES.make(name).protocol
    assert protocol.model in MODELS.names()
    assert PARTITIONERS.make(*protocol.partition).name == protocol.partition[0]
    assert protocol.num_clients is None or protocol.num_clients >= 2


def test_offices_with_an_old_scanner_see_the_same_digits_mirrored_and_pale() -> None:
    offices = SOURCES.make("offices").load(None)
    plain = SOURCES.make("offices", {"num_old": 0}).load(None)
    assert isinstance(offices, ArrayExamples)
    assert isinstance(plain, ArrayExamples)
    x, new = offices.x, plain.x
    assert offices.user is not None
    old = offices.user < 2
    assert torch.equal(x[old], new[old].flip(-1) / 2)
    assert torch.equal(x[~old], new[~old])
    assert torch.equal(offices.y, plain.y)
    assert offices.user_names[1:3] == ("old scanner 1", "office 2")
    assert offices.user.bincount().tolist() == [150] * 9 + [149] * 3
    with pytest.raises(ConfigError, match="num_old"):
        SOURCES.make("offices", {"num_old": 13})

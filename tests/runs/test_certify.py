"""The certificate of runs on disk."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest
from scipy import stats

from propfair.errors import ConfigError, DataError
from propfair.fairness.certificate import certificate
from propfair.report.relative import draw_relative
from propfair.runs.again import hits
from propfair.runs.building import build_federation
from propfair.runs.certificate import Utility, certify
from propfair.runs.config import RunConfig
from propfair.runs.grouping import group_runs
from propfair.runs.launch import run
from propfair.runs.reading import read_run
from propfair.runs.run import Run
from tests.runs import killed


def tiny(*overrides: str, rounds: int) -> RunConfig:
    return killed.tiny("data=digits", "data.partition=iid", "local.lr=0.5", *overrides, rounds=rounds)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    home = tmp_path_factory.mktemp("runs")
    for algorithm in ("propfair", "fedavg"):
        for seed in (0, 1, 2):
            run(tiny(f"algorithm={algorithm}", f"seed={seed}", rounds=3), home / f"{algorithm}-{seed}")
    run(tiny("data.num_clients=5", rounds=1), home / "elsewhere")
    return {path.name: read_run(path) for path in home.iterdir()}


def test_one_seed_each(runs: dict[str, Run]) -> None:
    found = certify([runs["propfair-0"]], [runs["fedavg-0"]])
    star, other = runs["propfair-0"], runs["fedavg-0"]
    expected = certificate(other.values(), star.values(), star.shares)
    assert found.certificate.values == pytest.approx(expected.values)
    assert found.certificate.relative == pytest.approx(expected.relative)
    (interval,) = found.intervals
    assert interval is not None
    assert (interval.over, interval.leaves_out) == ("examples", "other seeds")
    assert "other seeds left out" in found.verdict.words
    assert found.certificate.names == ("fedavg",)


def test_seeds_are_one_model_and_pair_up(runs: dict[str, Run]) -> None:
    others = [runs[f"{name}-{seed}"] for seed in (2, 1, 0) for name in ("fedavg", "propfair")]
    found = certify([runs["propfair-0"]], [other for other in others if other.folder != runs["propfair-0"].folder])
    assert found.reference.by_seed.keys() == {0, 1, 2}
    values = [
        certificate(runs[f"fedavg-{s}"].values(), runs[f"propfair-{s}"].values(), runs["fedavg-0"].shares).values[0]
        for s in (0, 1, 2)
    ]
    assert found.certificate.values[0] == pytest.approx(np.mean(values))
    (interval,) = found.intervals
    assert interval is not None
    assert interval.over == "seeds"
    low, high = stats.t.interval(0.95, 2, loc=np.mean(values), scale=stats.sem(values))
    assert (interval.low, interval.high) == pytest.approx((low, high))


def test_uniform_weights_and_losses(runs: dict[str, Run]) -> None:
    star, other = runs["propfair-0"], runs["fedavg-0"]
    found = certify([star], [other], utility=Utility("test", M=20.0), weights="uniform")
    u, u_star = (20 - one.evaluation("test").loss.numpy() for one in (other, star))
    assert found.certificate.values == pytest.approx(certificate(u, u_star, "uniform").values)
    assert found.intervals == (None,)


def forgetful(run: Run) -> Run:
    """The run as a version wrote it that kept no answers."""
    return dataclasses.replace(run, records=run.records.filter(pc.field("split") != "answers"))


def test_paired_intervals_run_the_models_again(runs: dict[str, Run]) -> None:
    kept = certify([runs["propfair-0"]], [runs["fedavg-0"]])
    star, other = forgetful(runs["propfair-0"]), forgetful(runs["fedavg-0"])
    federation = build_federation(tiny(rounds=1))
    own = hits(star, federation, "test")
    sizes = np.array(star.clients.sizes["test"])
    owner = np.repeat(np.arange(4), sizes)
    assert np.bincount(owner, weights=own) / sizes == pytest.approx(star.values())
    unknown = certify([star], [other])  # how often both are right on the same examples
    assert unknown.intervals == (None,)
    assert "certify --paired asks the models again" in unknown.verdict.words
    found = certify([star], [other], paired=federation)
    (interval,) = found.intervals
    assert interval is not None
    assert interval.over == "examples"
    assert interval == kept.intervals[0]  # the answers in the records are those that the models give again
    assert interval.low <= found.certificate.values[0] <= interval.high
    assert "other seeds left out" in found.verdict.words
    with pytest.raises(DataError, match="have changed"):
        certify([star], [other], paired=build_federation(tiny("data.num_clients=5", rounds=1)))


def test_other_clients_are_refused(runs: dict[str, Run]) -> None:
    with pytest.raises(DataError, match="do not have the same clients: the fingerprints"):
        certify([runs["propfair-0"]], [runs["elsewhere"]])


def test_nothing_to_compare_with(runs: dict[str, Run]) -> None:
    with pytest.raises(ConfigError, match="nothing to certify against"):
        certify([runs["propfair-0"]], [runs["propfair-1"]])
    with pytest.raises(ConfigError, match="no seed in common"):
        certify([runs["propfair-0"], runs["propfair-1"]], [runs["fedavg-2"]])
    with pytest.raises(ConfigError, match="nothing but the seed"):
        certify([runs["propfair-0"], runs["fedavg-0"]], [runs["fedavg-1"]])
    with pytest.raises(DataError, match="not evaluated on 'train'"):
        certify([runs["propfair-0"]], [runs["fedavg-0"]], utility=Utility("train"))


def test_a_client_with_nothing_is_an_error(runs: dict[str, Run]) -> None:
    low = float(runs["propfair-0"].evaluation("test").loss.max()) - 1e-3
    with pytest.raises(DataError, match=r"must be > 0 for every client, but propfair leaves client \d"):
        certify([runs["propfair-0"]], [runs["fedavg-0"]], utility=Utility("test", M=low))


def test_the_same_seed_twice_is_no_second_seed(runs: dict[str, Run], tmp_path: Path) -> None:
    run(tiny("algorithm=fedavg", rounds=3), tmp_path / "copy")
    models = group_runs([runs["fedavg-0"], read_run(tmp_path / "copy")])
    assert [model.label for model in models] == ["fedavg (fedavg-0)", "fedavg (copy)"]


def test_json_and_picture(runs: dict[str, Run], tmp_path: Path) -> None:
    found = certify([runs["propfair-0"]], [runs["fedavg-0"], runs["fedavg-1"]])
    content = json.loads(json.dumps(found.as_dict()))
    assert content["against"][0]["model"] == "fedavg"
    assert len(content["against"][0]["relative"]) == 4
    assert "proportionally fair" in content["verdict"] or "undecided" in content["verdict"]
    draw_relative(["fedavg"], list(found.certificate.relative), found.clients, tmp_path / "a" / "c.png", "who gains")
    assert (tmp_path / "a" / "c.png").read_bytes().startswith(b"\x89PNG")
    draw_relative(["fedavg"], list(found.certificate.relative), found.clients, tmp_path / "c.pdf", "who gains")
    assert (tmp_path / "c.pdf").read_bytes().startswith(b"%PDF")

"""The promise of the contract: an algorithm with its own number for each client is one file outside the package."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra: pip install 'propfair[flower]'")

from flwr.app import ArrayRecord

from propfair.algorithms import ALGORITHMS
from propfair.core.rounds import Rounds
from propfair.engines.inprocess import InProcess
from propfair.engines.processes import Processes
from propfair.engines.ray import Ray
from propfair.engines.session import Engine
from propfair.engines.vectorized import Vectorized
from propfair.flower import FairStrategy, client_app
from propfair.report.write import write_report
from propfair.tuning.search import SweepFile, make_sweep
from propfair.tuning.studies import Home
from propfair.tuning.sweep import run_sweep
from tests.engines import scenes
from tests.flower.grid import LOCAL, SEED, LocalGrid, network, own_data, simulated
from tests.plugin import installed

ROUNDS = Rounds(participation=7)


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    with installed():
        yield


@pytest.mark.parametrize(
    ("engine", "tolerance"),
    [
        (Processes(workers=2), None),
        (Vectorized(), 1e-5),
        pytest.param(Ray(workers=1), None, marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_every_engine_gives_each_client_its_own_number(engine: Engine, tolerance: float | None) -> None:
    work = scenes.workload("tempered")
    expected = scenes.run(InProcess(threads=1), work, scenes.mlp(), ROUNDS, 3)
    found = scenes.run(engine, work, scenes.mlp(), ROUNDS, 3)
    assert found.notes == []
    scenes.assert_same(found, expected, tolerance)
    told = [row.observed["temperature"] for row in expected.outcomes[0].reports.rows()]
    assert len(set(told)) == len(told)


def test_a_wrapper_passes_the_numbers_on() -> None:
    own = scenes.run(InProcess(), scenes.workload("tempered"), scenes.mlp(), ROUNDS)
    work = scenes.workload(ALGORITHMS.make("ditto", {"over": "tempered"}))
    wrapped = scenes.run(Vectorized(), work, scenes.mlp(), ROUNDS)
    torch.testing.assert_close(wrapped.params, own.params, rtol=1e-5, atol=1e-5)


def test_flower_carries_the_numbers() -> None:
    algorithm = ALGORITHMS.make("tempered", {"keep": 0.5})
    strategy = FairStrategy(algorithm, network(), local=LOCAL, seed=SEED)
    start = ArrayRecord(network().state_dict())
    result = strategy.start(grid=LocalGrid(client_app(network, own_data)), initial_arrays=start, num_rounds=3)
    expected, outcomes, _ = simulated(algorithm, 3)
    found = result.arrays.to_torch_state_dict()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert [outcome.diagnostics for outcome in strategy.outcomes] == [outcome.diagnostics for outcome in outcomes]


def test_a_sweep_tunes_it_and_a_report_shows_its_numbers(tmp_path: Path) -> None:
    written = SweepFile(
        run={"data": {"name": "digits", "num_clients": 4}, "model": "logistic", "schedule": {"rounds": 2}},
        algorithms={"fedavg": {}, "tempered": {"keep": [0.2, 0.8]}},
    )
    studies = run_sweep(make_sweep(written), Home.at(tmp_path), workers=0)
    tested = {one.winner.contestant.label: one for one in studies.tested()}
    assert set(tested) == {"fedavg", "tempered"}
    folders = [run.folder for one in tested.values() for run in one.group.runs if run.folder is not None]
    problems, _ = write_report(folders, tmp_path / "report.html")
    assert not problems
    page = (tmp_path / "report.html").read_text()
    assert "tempered" in page
    assert "temperature" in page

"""Run folders of version 0.1.0 (tests/fixtures/run-0.1.0) are read, reported, certified and resumed."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch

from propfair.report.write import write_report
from propfair.runs.answers import SPLIT as ANSWERS
from propfair.runs.certificate import certify
from propfair.runs.grouping import by_clients
from propfair.runs.launch import resume
from propfair.runs.progress import Progress
from propfair.runs.reading import read_run, read_runs

OLD = Path(__file__).parents[1] / "fixtures" / "run-0.1.0"


def test_they_are_read_and_grouped() -> None:
    runs, problems = read_runs([OLD])
    assert not problems
    states = {run.where.rpartition("/")[2]: (run.label, run.status.state, run.status.rounds) for run in runs}
    assert states == {
        "fedavg": ("fedavg", "finished", 6),
        "fedavg-stopped": ("fedavg", "interrupted", 3),
        "propfair": ("propfair(preset=paper, M=schedule)", "finished", 6),
        "propfair-stopped": ("propfair(preset=paper, M=schedule)", "interrupted", 4),
        "fedavg-then-propfair": ("propfair(preset=paper, M=schedule) from fedavg", "finished", 2),
    }
    (comparison,) = by_clients(runs)
    assert len(comparison.groups) == 5  # the same seed twice is no second seed
    finished = read_run(OLD / "fedavg")
    recorded = pq.read_table(OLD / "fedavg" / "records.parquet").to_pandas()
    last = recorded.query("round == 6 and split == 'test' and metric == 'accuracy'").sort_values("client")["value"]
    np.testing.assert_array_equal(finished.values(), last)


def test_they_are_reported_and_certified(tmp_path: Path) -> None:
    problems, num_runs = write_report([OLD], tmp_path / "page.html")
    assert (problems, num_runs) == ([], 5)
    found = certify([read_run(OLD / "propfair")], [read_run(OLD / "fedavg"), read_run(OLD / "fedavg-then-propfair")])
    assert found.certificate.names == ("fedavg", "propfair(preset=paper, M=schedule) from fedavg")
    assert np.isfinite(found.certificate.values).all()


@pytest.mark.parametrize(("name", "first"), [("fedavg", 4), ("propfair", 5)])
def test_they_are_resumed_to_the_same_numbers(tmp_path: Path, name: str, first: int) -> None:
    """To the bits on the processor that made them; another one rounds the last digit its own way."""
    shutil.copytree(OLD / f"{name}-stopped", tmp_path / name)
    seen: list[Progress] = []
    result = resume(tmp_path / name, after_round=seen.append)
    assert [now.round for now in seen] == list(range(first, 7))
    assert result.state == "finished"
    whole = safetensors.torch.load_file(OLD / name / "model.safetensors")
    torch.testing.assert_close(dict(result.model.state_dict()), whole, rtol=0.0, atol=1e-6)
    for file in ("records.parquet", "rounds.parquet"):
        assert_same_rows(read_table(tmp_path / name / file), read_table(OLD / name / file))
    assert_same_rows(pd.read_csv(tmp_path / name / "metrics.csv"), pd.read_csv(OLD / name / "metrics.csv"))


def read_table(path: Path) -> pd.DataFrame:
    """A table without the answers to single examples, which version 0.1.0 did not keep."""
    table = pq.read_table(path).to_pandas()
    return table[table["split"] != ANSWERS].reset_index(drop=True) if "split" in table else table


def assert_same_rows(new: pd.DataFrame, old: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(new, old, rtol=0.0, atol=1e-6, check_categorical=False)

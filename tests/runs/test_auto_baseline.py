"""PropFair with M="auto": from high to low while nobody is past the threshold."""

import os
import signal
from pathlib import Path

import pytest
import torch

from propfair.algorithms import ALGORITHMS, Cohort
from propfair.algorithms.propfair import PropFair
from propfair.errors import ConfigError
from propfair.runs.launch import resume, run
from propfair.runs.training import Progress
from tests.runs.killed import content, tiny


def after(past: list[float], M: float) -> float:
    rule = PropFair(M="auto")
    cohort = Cohort.of([0.5, 0.5])
    reported = Cohort(**{**vars(cohort), "observed": {"past_threshold": torch.tensor(past, dtype=torch.float64)}})
    return float(rule.learn(reported, {"M": torch.tensor([M], dtype=torch.float64)})["M"])


def test_it_is_lowered_only_when_no_batch_is_past_the_threshold() -> None:
    assert after([0.0, 0.0], 10.0) == 9.0
    assert after([0.0, 0.01], 10.0) == 10.0
    assert after([0.0, 0.0], 2.1) == 2.0
    assert after([0.0, 0.0], 2.0) == 2.0


def test_a_run_follows_the_schedule(tmp_path: Path) -> None:
    config = tiny("data=digits", "algorithm=propfair", "algorithm.M=auto", "local.lr=2.0", rounds=12)
    table = (
        run(config, tmp_path / "run").rounds_table.to_pandas().pivot(index="round", columns="metric", values="value")
    )
    assert table["M"][1] == 10.0
    for number in range(1, 12):
        expected = table["M"][number] if table["past_threshold"][number] > 0 else max(2.0, 0.9 * table["M"][number])
        assert table["M"][number + 1] == pytest.approx(expected)
    assert table["M"][12] < 5


def test_it_resumes_with_the_same_bits(tmp_path: Path) -> None:
    def stop(now: Progress) -> None:
        if now.round == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    config = tiny("algorithm=ditto", "algorithm.over=propfair", "algorithm.options.M=auto", rounds=6)
    run(config, tmp_path / "whole", name="tiny")
    run(config, tmp_path / "stopped", name="tiny", after_round=stop)
    resume(tmp_path / "stopped")
    assert content(tmp_path / "stopped") == content(tmp_path / "whole")


def test_the_server_still_needs_only_sums() -> None:
    assert PropFair(M="auto").privacy == "sums"
    assert ALGORITHMS.make("alpha-fair", {"M": "auto", "alpha": 2.0}).init(torch.ones(2))["M"].tolist() == [10.0]


def test_wrong_words_and_thresholds_are_refused() -> None:
    with pytest.raises(ConfigError, match="M must be"):
        ALGORITHMS.make("propfair", {"M": "automatic"})
    with pytest.raises(ConfigError, match="epsilon"):
        PropFair(M="auto", epsilon=3.0)

"""What a sweep will take: rounds, evaluations on the way, and those after the last round."""

import torch

from propfair.runs.building import build_federation
from propfair.runs.config import make_config
from propfair.runs.schedule import Schedule
from propfair.tuning.estimate import Pace, measure_pace


def test_a_run_is_its_rounds_and_its_evaluations() -> None:
    federation = build_federation(make_config({"data": {"name": "digits", "split": {"validation": 0.1}}}))
    sizes = {split: len(federation.split(split).values) for split in ("train", "validation", "test")}
    pace = Pace(round=10.0, example=0.5)
    never = Schedule(rounds=7, eval_every=3, eval_splits=())
    assert pace.of_run(never, federation) == 70
    often = Schedule(rounds=7, eval_every=3, eval_splits=("validation",), final_splits=("validation", "test"))
    assert pace.of_run(often, federation) == 70 + 0.5 * (3 * sizes["validation"] + sizes["test"])


def test_both_are_measured() -> None:
    torch.set_num_threads(1)
    config = make_config({"data": {"name": "digits"}, "model": {"name": "logistic"}, "engine": {"name": "inprocess"}})
    pace = measure_pace(config, build_federation(config), threads=1)
    assert pace.round > 0
    assert pace.example >= 0
    diverging = config.changed(local={**config.local.__dict__, "lr": 1e30})
    assert measure_pace(diverging, build_federation(diverging), threads=1) == Pace(0.0, 0.0)

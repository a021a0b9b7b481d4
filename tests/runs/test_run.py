"""One truth about a run: in memory and on disk, alone and in groups, the same numbers from the same code."""

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import propfair
from propfair.data.base import SOURCES
from propfair.federation.partition import PARTITIONERS
from propfair.registry import Registry
from propfair.report.verdicts import Verdicts, judge
from propfair.runs.certificate import certify
from propfair.runs.config import make_config
from propfair.runs.finetune import config_from
from propfair.runs.grouping import by_clients, group_runs
from propfair.runs.launch import run
from propfair.runs.measures import ACCURACY, Measure
from propfair.runs.progress import Progress
from propfair.runs.reading import read_run
from propfair.runs.toml import write_toml
from tests.report.builders import write_run
from tests.runs.killed import tiny
from tests.sealing import reseal


def test_the_summary_is_weighted_by_data_in_memory_and_on_disk(tmp_path: Path) -> None:
    config = tiny("data=digits", "data.split.validation=0.1", "local.lr=0.5", rounds=3)
    memory, disk = run(config), run(config, tmp_path / "run")
    for result in (memory, disk):
        numbers, shares = result.summary(), np.array(result.run.clients.sizes["train"], dtype=float)
        assert numbers.weighted_mean == pytest.approx(np.average(result.accuracy.numpy(), weights=shares))
        assert numbers.weighted_mean != pytest.approx(numbers.mean)
    assert memory.summary() == disk.summary() == read_run(tmp_path / "run").summary()
    assert memory.summary("validation") == disk.summary("validation")
    assert memory.run.records.drop(["run"]).equals(disk.run.records.drop(["run"]))
    assert memory.run.fingerprint == disk.run.fingerprint


def test_results_in_memory_are_certified_as_runs_on_disk_are(tmp_path: Path) -> None:
    configs = [tiny("data=digits", "local.lr=0.5", f"algorithm={name}", rounds=3) for name in ("propfair", "fedavg")]
    memory = [run(config).run for config in configs]
    disk = [run(config, tmp_path / config.algorithm.name).run for config in configs]
    here, there = (certify(star, other) for star, other in ([[a], [b]] for a, b in (memory, disk)))
    assert here.certificate.values.tolist() == there.certificate.values.tolist()
    assert here.intervals == there.intervals
    assert here.verdict == there.verdict


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("engine", "name", "processes"),
        ("engine", "workers", 3),
        ("", "device", "cuda"),
        ("", "log", ["tensorboard"]),
        ("data", "folder", "/elsewhere"),
        ("schedule", "checkpoint_every", 7),
    ],
)
def test_seeds_that_differ_in_what_decides_no_result_are_one_group_everywhere(
    tmp_path: Path, section: str, key: str, value: object
) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / f"{name}0", name=f"{name} on Monday", algorithm=name, seed=0)
        path = write_run(tmp_path / f"{name}1", name=f"{name} on Friday", algorithm=name, seed=1) / "config.toml"
        config = tomllib.loads(path.read_text())
        (config.setdefault(section, {}) if section else config)[key] = value
        path.write_text(write_toml(config))
        reseal(path.parent)
    runs = [read_run(tmp_path / name) for name in ("a0", "a1", "b0", "b1")]
    (comparison,) = by_clients(runs)
    assert [[one.seed for one in group.runs] for group in comparison.groups] == [[0, 1], [0, 1]]
    found = certify(runs[:1], runs[1:])
    assert [group.label for group in (found.reference, *found.others)] == ["a", "b"]
    judged = judge(comparison, ACCURACY)
    assert isinstance(judged, Verdicts)
    assert judged.values[0, 1] == pytest.approx(found.certificate.values[0])
    assert judged.words[0] == found.verdict.words


def test_seeds_of_a_fine_tuned_model_are_one_group(tmp_path: Path) -> None:
    for seed in (0, 1):
        run(tiny("algorithm=fedavg", f"seed={seed}", rounds=2), tmp_path / f"start-{seed}")
        config = config_from(tmp_path / f"start-{seed}", None, {"algorithm": "propfair", "schedule.rounds": 1})
        run(config, tmp_path / f"end-{seed}")
    ends = [read_run(tmp_path / f"end-{seed}") for seed in (0, 1)]
    (group,) = group_runs(ends)
    assert group.label == "propfair from fedavg"
    assert [[len(one.runs) for one in comparison.groups] for comparison in by_clients(ends)] == [[2]]
    path = tmp_path / "end-1" / "environment.json"  # as if it had come from elsewhere
    said = json.loads(path.read_text())
    path.write_text(json.dumps({**said, "start": {**said["start"], "rounds": 50}}))
    reseal(path.parent)
    assert len(group_runs([read_run(tmp_path / f"end-{seed}") for seed in (0, 1)])) == 2


def test_the_clients_changes_add_up_to_the_certificate(tmp_path: Path) -> None:
    for seed, (a, b) in enumerate([([0.2, 0.8], [0.4, 0.8]), ([0.8, 0.8], [0.4, 0.8])]):
        write_run(tmp_path / f"a{seed}", name="a", algorithm="a", seed=seed, num_clients=2, accuracy=a)
        write_run(tmp_path / f"b{seed}", name="b", algorithm="b", seed=seed, num_clients=2, accuracy=b)
    found = certify(*([read_run(tmp_path / f"{name}{seed}") for seed in (0, 1)] for name in "ab"))
    assert found.certificate.relative[0].tolist() == pytest.approx([(1.0 - 0.5) / 2, 0.0])
    assert found.certificate.shares @ found.certificate.relative[0] == pytest.approx(found.certificate.values[0])


@pytest.mark.parametrize("algorithm", ["fedavg", "ditto"])
def test_what_is_told_on_the_way_is_what_the_run_says_at_its_end(algorithm: str) -> None:
    """Pruning looks at the one and selection at the other: it must be the same number."""
    seen: list[Progress] = []
    config = tiny(
        "data=digits", "data.split.validation=0.2", f"algorithm={algorithm}", "schedule.eval_every=1", rounds=3
    )
    result = run(config, after_round=seen.append)
    assert seen[-1].summary("validation") == result.run.summary(Measure("validation"))
    assert seen[-1].summary("validation").weighted_mean != pytest.approx(seen[-1].summary("validation").mean)
    if algorithm == "ditto":
        assert not torch.equal(result.evaluation("test").loss, result.evaluations["test"].loss)
        assert torch.equal(result.evaluation("test").loss, result.personal["test"].loss)


def test_every_part_is_built_once_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: dict[str, int] = {}
    make = Registry.make

    def counted(registry: Registry[Any], name: str, fields: Any = None) -> Any:
        built[registry.kind] = built.get(registry.kind, 0) + 1
        return make(registry, name, fields)

    monkeypatch.setattr(Registry, "make", counted)
    run(make_config({}, ["data.num_clients=3", "model=logistic", "schedule.rounds=1"]), tmp_path / "run")
    kinds = {"algorithm", "engine", SOURCES.kind, PARTITIONERS.kind}
    assert {kind: built[kind] for kind in kinds} == dict.fromkeys(kinds, 1)


def test_a_changed_config_has_parts_of_its_own() -> None:
    config = make_config({})
    changed = config.model_copy(update={"seed": 7, "algorithm": make_config({}, ["algorithm=fedavg"]).algorithm})
    assert changed.parts.algorithm.name == "fedavg"
    assert "seed = 7" in changed.to_toml()
    assert config.parts.algorithm.name == "propfair"


def test_a_run_that_goes_on_has_the_same_type_and_setting(tmp_path: Path) -> None:
    write_run(tmp_path / "done", name="done", seed=0)
    write_run(tmp_path / "going", name="going", seed=1, state="running")
    (group,) = group_runs([read_run(tmp_path / "done"), read_run(tmp_path / "going")])
    assert not group.finished
    assert group.values().shape == (2, 10)


def test_runs_of_an_older_version_had_the_defaults_of_options_that_came_later(tmp_path: Path) -> None:
    run(tiny("algorithm=fedavg", rounds=1), tmp_path / "new")
    shutil.copytree(tmp_path / "new", tmp_path / "old")
    path = tmp_path / "old" / "config.toml"
    path.write_text(path.read_text().replace("strict = false\n", ""))
    environment = json.loads((tmp_path / "old" / "environment.json").read_text())
    (tmp_path / "old" / "environment.json").write_text(json.dumps({**environment, "seed": 1}))
    reseal(tmp_path / "old")
    assert len(group_runs([read_run(tmp_path / "new"), read_run(tmp_path / "old")])) == 1


def test_a_rule_that_was_renamed_is_the_same_rule(tmp_path: Path) -> None:
    write_run(tmp_path / "old", algorithm="fairgrad", seed=0)
    write_run(tmp_path / "new", algorithm="nash-mtl", seed=1)
    (group,) = group_runs([read_run(tmp_path / "old"), read_run(tmp_path / "new")])
    assert group.label == "nash-mtl"


def test_runs_from_python_are_known_by_name_and_algorithm(tmp_path: Path) -> None:
    torch.manual_seed(0)
    clients = [(torch.randn(20, 3), torch.arange(20) % 2) for _ in range(2)]
    for seed in (0, 1):
        propfair.train(nn.Linear(3, 2), clients, "fedavg", rounds=1, seed=seed, out=tmp_path / f"mine-seed{seed}")
    runs = [read_run(tmp_path / f"mine-seed{seed}") for seed in (0, 1)]
    assert [one.label for one in runs] == ["mine", "mine"]
    assert runs[0].algorithm == "fedavg(weighting=samples)"
    assert len(group_runs(runs)) == 1


def test_the_old_name_of_the_callback_still_works() -> None:
    seen: list[int] = []
    with pytest.warns(DeprecationWarning, match="after_round"):
        propfair.train(
            nn.Linear(3, 2), [(torch.randn(20, 3), torch.arange(20) % 2)], rounds=2,
            watch=lambda now: seen.append(now.round),
        )  # fmt: skip
    assert seen == [1, 2]


def test_labels_name_learning_rates_and_server_optimisers_where_they_differ(tmp_path: Path) -> None:
    for name, own in (
        ("slow", {"local.lr": 0.1}),
        ("fast", {"local.lr": 0.5}),
        ("adam", {"server.optimizer": "adam"}),
    ):
        settings = {"algorithm": "fedavg", "data.num_clients": 3, "schedule.rounds": 1, **own}
        run(make_config({"model": "logistic"}, settings), tmp_path / name)
    slow, fast, adam = (read_run(tmp_path / name) for name in ("slow", "fast", "adam"))
    assert [group.label for group in group_runs([slow, fast])] == ["fedavg [lr 0.1]", "fedavg [lr 0.5]"]
    assert [group.label for group in group_runs([slow])] == ["fedavg"]
    assert [group.label for group in group_runs([slow, adam])] == ["fedavg", "fedavg [adam]"]
    assert [group.label for group in group_runs([fast, adam])] == ["fedavg [lr 0.5]", "fedavg [adam, lr 0.1]"]

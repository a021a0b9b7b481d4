"""The tables and figures of the paper: their files, and a smoke run of each kind."""

import contextlib
import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("optuna")
pytest.importorskip("matplotlib")

from propfair.algorithms import ALGORITHMS as REGISTRY
from propfair.errors import ConfigError
from propfair.fairness.statistics import summarize
from propfair.paper import catalogue
from propfair.paper.catalogue import Scale, load_experiment, load_preset, preset_names
from propfair.paper.reproduce import left_to_run, reproduce
from propfair.paper.reproduced import Reproduced
from propfair.paper.settings import NotCompleteError, Settings
from propfair.paper.tables import long_table, table_of, write_reproduction
from propfair.runs.progress import AfterRound
from propfair.tuning.search import Sweep
from propfair.tuning.studies import Studies

EXPERIMENTS = ("cifar10", "cifar100", "tiny-imagenet", "shakespeare")
ALGORITHMS = {"fedavg", "q-ffl", "afl", "term", "gifair", "fedmgda+", "propfair"}
SCALES: tuple[Scale, ...] = ("smoke", "small", "paper")


class Screen:
    """Remembers what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    @contextlib.contextmanager
    def table(self, sweep: Sweep) -> Iterator[Callable[[Studies], None]]:
        yield lambda _: None

    @contextlib.contextmanager
    def run(self, title: str, rounds: int) -> Iterator[AfterRound]:
        yield lambda _: None


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reproduce")


def redo(name: str, out: Path, **changes: object) -> Reproduced:
    (one,) = reproduce(name, Settings(scale="smoke", out=out, **changes), Screen())  # type: ignore[arg-type]
    return one


def test_there_is_a_preset_for_every_table_and_figure() -> None:
    kinds = {name: load_preset(name).kind for name in preset_names()}
    assert {f"figure{number}" for number in range(1, 7)} <= kinds.keys()
    assert {f"table{number}" for number in range(3, 8)} == {name.partition("-")[0] for name in kinds if name[0] == "t"}


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_numbers_of_the_paper_fit_the_experiments(experiment: str) -> None:
    table = load_preset(f"table6-{experiment}")
    assert isinstance(table, catalogue.Statistics)
    assert table.paper.keys() == ALGORITHMS == load_experiment(experiment).algorithms.keys() - {"propfair-default"}
    known = summarize([0.5]).as_dict()
    for numbers in table.paper.values():
        assert list(numbers) == table.columns
        assert known.keys() >= numbers.keys()
        assert numbers["worst"][0] <= numbers["worst10"][0] <= numbers["mean"][0] <= numbers["best10"][0]


def test_numbers_of_the_paper_are_those_printed() -> None:
    cifar, worst = load_preset("table6-cifar10"), load_preset("table7-worst")
    assert isinstance(cifar, catalogue.Statistics)
    assert isinstance(worst, catalogue.Statistics)
    assert cifar.paper["propfair"]["mean"] == (64.75, 0.10)
    assert cifar.paper["propfair"]["worst"] == (58.14, 0.89)
    assert worst.paper["fedmgda+"] == {"worst20": (19.77, 0.87), "worst30": (20.33, 1.10)}
    total = 0.0
    for experiment in EXPERIMENTS:
        table = load_preset(f"table6-{experiment}")
        assert isinstance(table, catalogue.Statistics)
        total += sum(numbers["mean"][0] for numbers in table.paper.values())
    assert total == pytest.approx(439.48 + 205.31 + 116.34 + 351.79)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_published_values_are_those_of_tables_4_and_5(experiment: str) -> None:
    rates, others = load_preset("table5-learning-rates"), load_preset("table4-hyperparameters")
    assert isinstance(rates, catalogue.Chosen)
    assert isinstance(others, catalogue.Chosen)
    sweep = load_experiment(experiment).sweep("x", "paper", published=True)
    assert {contestant.label for contestant in sweep.contestants} == ALGORITHMS | {"propfair-default"}
    for contestant in sweep.contestants:
        if contestant.label == "propfair-default":
            continue
        assert contestant.settings["local.lr"] == rates.paper[experiment][contestant.label]
        if contestant.label in others.parameters:
            chosen = contestant.settings[others.parameters[contestant.label]]
            assert chosen == others.paper[experiment][contestant.label]


@pytest.mark.parametrize("experiment", EXPERIMENTS)
@pytest.mark.parametrize("scale", SCALES)
def test_every_scale_of_every_experiment_is_valid(experiment: str, scale: Scale) -> None:
    sweep = load_experiment(experiment).sweep("x", scale, only=sorted(ALGORITHMS))
    number = sum(sweep.num_trials(contestant) for contestant in sweep.contestants)
    assert number == {"smoke": 0, "small": 21, "paper": 72}[scale]  # none where there is nothing to choose
    assert sweep.seeds == {"smoke": (0,), "small": (0, 1, 2, 3, 4), "paper": (0, 1, 2)}[scale]
    assert load_experiment(experiment).note(scale)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_small_scale_chooses_a_learning_rate_alone_after_as_many_rounds_as_count(experiment: str) -> None:
    described = load_experiment(experiment)
    small, published = described.sweep("x", "small"), described.sweep("x", "paper", published=True)
    assert small.search.extend > 0
    for own, best in zip(small.contestants, published.contestants, strict=True):
        assert list(own.choices) == ["local.lr"]
        known = {key: value for key, value in best.settings.items() if key != "local.lr"}
        if own.label == "propfair" and "but M, which is 5" in described.note("small"):
            known["algorithm.M"] = 5.0  # above the losses
        assert own.settings == known, "the values of Table 4"
        trial, final = small.trial_config(own, small.example(own)), small.final_config(own, small.example(own), 0)
        assert trial.schedule.rounds == final.schedule.rounds


def test_paper_scale_is_the_papers_protocol() -> None:
    rounds = {"cifar10": 100, "cifar100": 400, "tiny-imagenet": 400, "shakespeare": 100}
    for experiment, expected in rounds.items():
        sweep = load_experiment(experiment).sweep("x", "paper")
        contestant = next(one for one in sweep.contestants if one.label == "propfair")
        config = sweep.final_config(contestant, {"algorithm.M": 2.0, "local.lr": 0.1}, 0)
        assert config.schedule.rounds == expected
        assert (config.local.batch_size, config.local.epochs, config.local.momentum) == (64, 1, 0.0)
        assert config.parts.algorithm.name == "propfair"
        assert config.parts.algorithm == REGISTRY.make("propfair", {"preset": "paper", "M": 2.0})
        assert len(contestant.choices["local.lr"]) == 4  # type: ignore[arg-type]


def test_a_table_of_statistics(out: Path, tmp_path: Path) -> None:
    screen = Screen()
    (table,) = reproduce("table6-cifar10", Settings(scale="smoke", out=out), screen)
    assert "digits" in screen.said[0]
    assert "a round took" in screen.said[1]
    assert "about 0 min" in screen.said[1]
    assert len(table.numbers) == 42
    assert len(table.runs) == 7
    assert all((path / "records.parquet").is_file() for path in table.runs)
    one = next(number for number in table.numbers if (number.row, number.column) == ("propfair", "mean"))
    assert one.paper == 64.75
    assert one.difference == pytest.approx(one.ours - 64.75)
    written = write_reproduction(table, tmp_path)
    assert {path.suffix for path in written} == {".md", ".tex", ".csv", ".json"}
    rows = list(csv.DictReader((tmp_path / "table6-cifar10.csv").read_text().splitlines()))
    assert len(rows) == 42
    assert float(rows[0]["difference"]) == pytest.approx(float(rows[0]["ours"]) - float(rows[0]["paper"]))
    assert len(json.loads((tmp_path / "table6-cifar10.json").read_text())["numbers"]) == 42
    assert "/ 64.75 ± 0.10 /" in (tmp_path / "table6-cifar10.md").read_text()
    assert r"64.75 $\pm$ 0.10" in (tmp_path / "table6-cifar10.tex").read_text()
    assert "the numbers mean nothing" in " ".join(table.notes)
    assert len(long_table(table).rows) == 42
    assert len(table_of(table).rows) == 7


def test_a_second_call_says_the_same_and_runs_nothing(out: Path) -> None:
    before = redo("table6-cifar10", out)
    times = {path: path.stat().st_mtime_ns for path in out.rglob("status.json")}
    screen = Screen()
    (again,) = reproduce("table6-cifar10", Settings(scale="smoke", out=out), screen)
    assert again.numbers == before.numbers
    assert len(screen.said) == 1
    assert {path: path.stat().st_mtime_ns for path in out.rglob("status.json")} == times
    for *_, left in left_to_run("table6-cifar10", Settings(scale="smoke", out=out)):
        assert left.nothing


def test_asking_what_is_left_binds_to_no_settings(tmp_path: Path) -> None:
    for change in {}, {"local.batch_size": 32}:
        settings = Settings(scale="smoke", out=tmp_path, only=("fedavg",), overrides=change)
        (left,) = left_to_run("table6-cifar10", settings)
        assert not left.estimate.nothing
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_relative_changes(out: Path, tmp_path: Path) -> None:
    figure = redo("figure2", out)
    assert [number.row for number in figure.numbers] == ["fedavg", "q-ffl", "afl", "term"]
    assert [number.paper for number in figure.numbers] == [-2.21, -12.95, -1.32, -1.79]
    (found,) = figure.certified
    assert found.certificate.relative.shape == (4, 5)
    written = write_reproduction(figure, tmp_path)
    assert {path.suffix for path in written} == {".md", ".tex", ".csv", ".json", ".png", ".pdf"}


@pytest.mark.parametrize("name", ["figure3", "figure4"])
def test_fine_tuning(out: Path, tmp_path: Path, name: str) -> None:
    figure = redo(name, out)
    assert [number.row for number in figure.numbers] == ["fedavg", "afl", "q-ffl", "term"]
    labels = [(found.reference.label, found.others[0].label) for found in figure.certified]
    for start, end in labels:
        assert ("propfair" in start) == (name == "figure3")
        assert end.endswith(f"from {start}")
    assert (tmp_path / f"{name}.png") in write_reproduction(figure, tmp_path)


def test_the_scatter_of_one_data_set(out: Path, tmp_path: Path) -> None:
    figure = redo("figure5", out, experiments=("cifar10",))
    assert {number.row.partition(": ")[2] for number in figure.numbers} == ALGORITHMS - {"gifair", "fedmgda+"}
    assert (tmp_path / "figure5.pdf") in write_reproduction(figure, tmp_path)


def test_sizes_and_chosen_values(out: Path) -> None:
    sizes = redo("table3-datasets", out, experiments=("cifar10",))
    assert {number.column: number.ours for number in sizes.numbers} == {"train": 1437, "test": 360, "clients": 5}
    chosen = redo("table4-hyperparameters", out, experiments=("cifar10",))
    assert {number.row: (number.ours, number.paper) for number in chosen.numbers}["propfair"] == (5.0, 5.0)
    with pytest.raises(ConfigError, match="leave --published out"):
        redo("table4-hyperparameters", out, published=True)


def test_a_row_that_the_paper_does_not_have(out: Path) -> None:
    table = redo("propfair-default-cifar10", out)
    ours = [row for row in long_table(table).rows if row[0] == "propfair-default"]
    assert len(ours) == 6
    assert {(row[3], row[4]) for row in ours} == {("-", "-")}
    assert json.loads(json.dumps(table.as_dict()))["numbers"][-1]["paper"] is None


def test_examples_are_drawn(out: Path, tmp_path: Path) -> None:
    assert (tmp_path / "figure1.png") in write_reproduction(redo("figure1", out), tmp_path)


def test_published_values_one_algorithm_one_seed(out: Path) -> None:
    changed = {"schedule.rounds": 1, "data.folder": str(out)}
    table = redo("table6-cifar10", out, published=True, only=("fedavg",), seeds=(3,), overrides=changed)
    assert {number.row for number in table.numbers} == {"fedavg"}
    assert "changed settings: schedule.rounds=1" in table.notes


def test_notes_say_how_models_were_initialised(out: Path, tmp_path: Path) -> None:
    assert "common initialisation" in " ".join(redo("table6-cifar10", out, only=("fedavg",)).notes)
    table = redo("table6-cifar10", tmp_path, only=("fedavg",), overrides={"init": "independent", "schedule.rounds": 1})
    assert "each client initialised by itself" in " ".join(table.notes)
    assert "changed settings: init=independent, schedule.rounds=1" in table.notes
    assert "common" not in " ".join(table.notes)


def test_time_is_up(tmp_path: Path) -> None:
    with pytest.raises(NotCompleteError, match="the same command goes on"):
        redo("table6-cifar10", tmp_path, minutes=0.0)


def test_unknown_names(out: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'table6'"):
        load_preset("table66")
    with pytest.raises(ConfigError, match="unknown experiment"):
        load_experiment("mnist")
    with pytest.raises(ConfigError, match="unknown algorithm of table6-cifar10 'fedprox'"):
        redo("table6-cifar10", out, only=("fedprox",))
    with pytest.raises(ConfigError, match="has no experiment 'mnist'"):
        redo("figure5", out, experiments=("mnist",))
    with pytest.raises(ConfigError, match="has no experiment 'mnist'"):
        redo("table6", out, experiments=("mnist",))

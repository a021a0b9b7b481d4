"""Experiment files: what is in them, and what is wrong with them."""

from pathlib import Path

import pytest

from propfair.errors import ConfigError
from propfair.fairness.statistics import summarize
from propfair.registry import fields_of
from propfair.runs.measures import Measure
from propfair.tuning.criteria import CRITERIA, Criterion
from propfair.tuning.search import load_sweep

GOOD = """
[run]
data = {name = "digits", num_clients = 4}
model = "logistic"
[grid]
local.lr = [0.1, 0.5]
[algorithms.fedavg]
[algorithms.propfair]
M = [2.0, 5.0]
epsilon = 0.1
[algorithms.printed]
name = "propfair"
variant = "huber"
local.lr = 0.3
"""
TPE = "[search]\nsampler = 'tpe'\ntrials = 3\n[algorithms.fedavg]\n"


def load(tmp_path: Path, text: str, *overrides: str, **options: object):  # type: ignore[no-untyped-def]
    (tmp_path / "sweep.toml").write_text(text)
    return load_sweep(tmp_path / "sweep.toml", overrides, **options)  # type: ignore[arg-type]


def test_grids_are_crossed_and_own_values_win(tmp_path: Path) -> None:
    sweep = load(tmp_path, GOOD, "schedule.rounds=7")
    assert sweep.name == "sweep"
    fedavg, propfair, printed = sweep.contestants
    assert fedavg.grid() == [{"local.lr": 0.1}, {"local.lr": 0.5}]
    assert propfair.grid() == [{"local.lr": lr, "algorithm.M": M} for lr in (0.1, 0.5) for M in (2.0, 5.0)]
    assert printed.grid() == [{}]
    config = sweep.trial_config(propfair, propfair.grid()[3])
    assert fields_of(config.parts.algorithm).items() >= {"M": 5.0, "epsilon": 0.1}.items()
    assert (config.local.lr, config.schedule.rounds) == (0.5, 7)
    config = sweep.final_config(printed, {}, seed=3)
    assert (config.local.lr, config.seed, config.parts.algorithm.name) == (0.3, 3, "propfair")


def test_trials_do_not_look_at_the_test_split_and_finals_once(tmp_path: Path) -> None:
    sweep = load(tmp_path, GOOD)
    trial = sweep.trial_config(sweep.contestants[0], {})
    assert (trial.schedule.eval_splits, trial.schedule.final_splits) == (("validation",), ())
    assert trial.parts.splitter.validation == 0.1
    final = sweep.final_config(sweep.contestants[0], {}, 0)
    assert (final.schedule.eval_splits, final.schedule.final_splits) == (("validation",), ("test",))
    paper = load(tmp_path, GOOD, selection="paper")
    trial = paper.trial_config(paper.contestants[0], {})
    assert trial.schedule.eval_splits == ("test",)
    assert trial.parts.splitter.validation == 0


def test_a_change_shows_in_the_fingerprint_and_the_data_folder_does_not(tmp_path: Path) -> None:
    one = load(tmp_path, GOOD)
    own = one.contestants[1]
    moved = load(tmp_path, GOOD, "data.folder=/elsewhere")
    assert one.fingerprint(own) == moved.fingerprint(moved.contestants[1])
    for change in ("schedule.rounds=3", "data.seed=1", "local.epochs=2"):
        other = load(tmp_path, GOOD, change)
        assert one.fingerprint(own) != other.fingerprint(other.contestants[1])
    other = load(tmp_path, GOOD.replace("[2.0, 5.0]", "[2.0, 4.0]"))
    assert one.fingerprint(own) != other.fingerprint(other.contestants[1])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[algorithms.fedavg", "not valid TOML"),
        ("", "algorithms: Field required"),
        ("[algorithms]\n", "no algorithms"),
        ("[algorithms.fedavg]\n[grids]\n", "Did you mean 'grid'"),
        ("[algorithms.fedag]\n", "Did you mean 'fedavg'"),
        ("[algorithms.propfair]\nN = [1.0]\n", "unknown option of algorithm 'propfair': 'N'"),
        ("[algorithms.propfair]\nM = []\n", "the list of values for algorithm.M is empty"),
        ("[algorithms.propfair]\nM = [2.0, 2.0]\n", "has duplicates"),
        ("[algorithms.propfair]\nM = [2.0, 0.1]\n", "epsilon"),
        ("[algorithms.propfair]\nM = {low = 1.0, high = 9.0}\n", 'set sampler = "tpe"'),
        ("[algorithms.propfair]\nM = {low = 1.0, top = 9.0}\n", "a range is"),
        ("[search]\nsampler = 'tpe'\n[algorithms.fedavg]\n", "needs trials"),
        (f"[grid]\nlocal.lr = {{low = 1.0, high = 0.1}}\n{TPE}", "low < high"),
        ("[search]\nsampler = 'random'\n[algorithms.fedavg]\n", "search.sampler"),
        ("search = {pruning = true}\n[run]\nschedule = {rounds = 5}\n[algorithms.fedavg]\n", "pruning needs"),
        ("[grid]\nlr = [0.1]\n[algorithms.fedavg]\n", "Did you mean 'local.lr'"),
        ("seeds = []\n[algorithms.fedavg]\n", "seeds must be different"),
        ("seeds = [1, 1]\n[algorithms.fedavg]\n", "seeds must be different"),
        ("criterion = 'fairness'\n[algorithms.fedavg]\n", "unknown criterion 'fairness'"),
        ("criterion = {mean = -1.0}\n[algorithms.fedavg]\n", "must be a positive number"),
        ("[run]\ndata = {split = {validation = 0.0}}\n[algorithms.fedavg]\n", "no validation split"),
        ("[run]\nrounds = 3\n[algorithms.fedavg]\n", "Did you mean 'schedule.rounds'"),
    ],
)  # fmt: skip
def test_bad_files_are_refused_with_the_reason(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert complaint in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't read"):
        load_sweep(tmp_path / "none.toml")


def test_criteria() -> None:
    numbers = summarize([0.2, 0.4, 0.9])
    assert Criterion.parse("worst10").of(numbers) == pytest.approx(0.2)
    assert Criterion.parse("nash").of(numbers) == pytest.approx((0.2 * 0.4 * 0.9) ** (1 / 3))
    mixed = Criterion.parse({"mean": 0.5, "worst10": 2.0})
    assert mixed.of(numbers) == pytest.approx(0.25 + 0.4)
    assert Criterion.parse("mean=0.5,worst10=2") == mixed
    for name in CRITERIA:
        assert Criterion.parse(name).of(numbers) > 0
    with pytest.raises(ConfigError, match="looks like"):
        Criterion.parse("mean=a")


def test_criteria_of_any_metric() -> None:
    there = [Measure("test", "f1"), Measure("validation", "mae"), Measure("validation", "f1"), Measure("test", "mae")]
    plain, named = Criterion.parse("mean"), Criterion.parse("mean=1,worst=1 of f1")
    assert (named.weights, named.metric, str(named)) == ({"mean": 1.0, "worst": 1.0}, "f1", "1 mean + 1 worst of f1")
    assert plain.measure(there, "validation").metric == "mae", "the most telling comes first"
    assert named.measure(there, "validation").metric == "f1"
    errors = summarize([1.0, 3.0], higher_is_better=False)
    assert plain.of(errors, Measure("validation", "mae")) == -2.0
    assert Criterion.parse("worst").of(errors, Measure("validation", "mae")) == -3.0
    with pytest.raises(ConfigError, match="no value on the test split, where there is: f1, mae"):
        Criterion.parse("mean of auc").measure(there, "test")
    with pytest.raises(ConfigError, match="product of utilities"):
        Criterion.parse("nash").measure(there, "validation")


def test_criteria_that_are_none() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        Criterion.parse({})

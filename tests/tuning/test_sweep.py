"""Sweeps: honest about test data, never the same work twice, whoever is killed."""

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("optuna")

from propfair.cli.sweep_text import eta
from propfair.engines.together import NOTE
from propfair.errors import ConfigError, PropFairError
from propfair.report.sweep import result_json, result_table, write_results
from propfair.report.tables import TextTable
from propfair.runs.folder import RunFolder
from propfair.runs.interrupt import stop_on_signal
from propfair.runs.measures import Measure
from propfair.runs.progress import Progress
from propfair.runs.reading import read_run
from propfair.tuning import claims
from propfair.tuning.claims import Board, open_storage, open_study, said_of
from propfair.tuning.search import Sweep, SweepFile, make_sweep
from propfair.tuning.studies import Home, Studies
from propfair.tuning.sweep import TrialRunner, run_sweep
from tests.runs.killed import start

RUN = ["data=digits", "data.num_clients=4", "model=logistic", "schedule.rounds=3", "schedule.eval_every=1"]


def sweep(*overrides: str, **changes: object) -> Sweep:
    content: dict[str, object] = {
        "name": "tiny",
        "criterion": "worst10",
        "seeds": [0, 1],
        "grid": {"local": {"lr": [0.01, 0.5]}},
        "algorithms": {"fedavg": {}, "propfair": {"M": [2.0, 5.0]}},
        **changes,
    }
    return make_sweep(SweepFile.model_validate(content), [*RUN, *overrides])


def work(plan: Sweep, out: Path, number: int = 0) -> None:
    torch.set_num_threads(1)
    TrialRunner(plan, Home.at(out), number=number).work()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Studies:
    out = tmp_path_factory.mktemp("sweep")
    work(sweep(), out)
    return Studies(sweep(), Home.at(out))


def test_the_best_on_the_validation_split_wins(finished: Studies) -> None:
    trials = [read_run(path) for path in (finished.home.out / "trials").iterdir()]
    assert len(trials) == 6
    for winner in finished.winners():
        own = [run for run in trials if run.config["algorithm"]["name"] == winner.contestant.label]
        best = max(own, key=lambda run: run.summary(Measure("validation")).worst10)
        assert winner.value == pytest.approx(best.summary(Measure("validation")).worst10)
        assert winner.point["local.lr"] == 0.5
    assert finished.complete
    assert not finished.broken


def test_the_test_split_is_read_once_at_the_end(finished: Studies) -> None:
    for path in (finished.home.out / "trials").iterdir():
        records = RunFolder.open(path).tables().clients.to_pandas()
        assert "test" not in set(records["split"])
    finals = sorted((finished.home.out / "final").iterdir())
    assert len(finals) == 4
    for path in finals:
        records = RunFolder.open(path).tables().clients.to_pandas()
        assert set(records.query("split == 'test'")["round"]) == {3}
        assert set(records.query("split == 'validation'")["round"]) == {1, 2, 3}


def test_outcomes_are_those_of_the_final_runs(finished: Studies, tmp_path: Path) -> None:
    tested = finished.tested()
    assert [one.winner.contestant.label for one in tested] == ["fedavg", "propfair"]
    for one in tested:
        assert [run.seed for run in one.group.runs] == [0, 1]
        for run in one.group.runs:
            (path,) = (finished.home.out / "final").glob(f"{one.winner.contestant.label}-seed{run.seed}-*")
            np.testing.assert_array_equal(run.values(), read_run(path).values())
    content = result_json(finished.sweep, tested, [])
    mean = content["algorithms"][0]["test"]["mean"]
    means = tested[0].group.values().mean(axis=1)
    assert mean["population_std"] == pytest.approx(np.std(means))
    assert mean["sample_std"] == pytest.approx(np.std(means, ddof=1))
    written = write_results(finished.sweep, tested, [], tmp_path)
    assert [path.name for path in written] == ["results.md", "results.tex", "results.csv", "results.json"]
    assert json.loads(written[-1].read_text()) == content
    assert "population" in written[0].read_text()
    assert "read once, at the end" in written[0].read_text()


def test_the_time_left_without_worker_processes(finished: Studies) -> None:
    assert eta(finished.sweep, finished.tallies(), 0) == 0


def test_called_again_it_runs_nothing(finished: Studies) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.home.out.rglob("status.json")}
    assert len(before) == 10
    work(sweep(), finished.home.out)
    assert {path: path.stat().st_mtime_ns for path in finished.home.out.rglob("status.json")} == before


def test_another_sweep_of_the_same_name_is_refused(finished: Studies) -> None:
    with pytest.raises(ConfigError, match="made with other settings"):
        Studies(sweep(criterion="mean"), finished.home)


def test_selection_as_in_the_paper_says_so(tmp_path: Path) -> None:
    plan = sweep(selection="paper", algorithms={"fedavg": {}}, seeds=[0])
    work(plan, tmp_path)
    studies = Studies(plan, Home.at(tmp_path))
    (one,) = studies.tested()
    assert one.winner.value == pytest.approx(one.group.runs[0].summary().worst10)
    assert "optimistic" in " ".join(result_table(plan, [one]).notes)


def test_two_sweeps_at_once_neither_repeat_nor_lose_a_trial(tmp_path: Path) -> None:
    plan = sweep()
    children = [start(work, plan, tmp_path, number) for number in (0, 0)]  # both look for work in the same order
    for child in children:
        child.join()
        assert child.exitcode == 0
    studies = Studies(plan, Home.at(tmp_path))
    assert studies.complete
    done = 0
    for board in [*studies.boards.values(), studies.final(studies.winners())]:
        complete = [said_of(t)["point"] for t in board.study.get_trials() if t.state.name == "COMPLETE"]
        assert sorted(complete) == list(range(board.num_points))
        others = [t for t in board.study.get_trials() if t.state.name != "COMPLETE"]
        assert all(said_of(t).get("superseded") for t in others)
        done += len(complete)
    folders = [*(tmp_path / "trials").iterdir(), *(tmp_path / "final").iterdir()]
    assert len(folders) == done == 10
    assert not any("resumed" in RunFolder.open(folder).environment for folder in folders)


def work_and_die(plan: Sweep, place: Path, trials: int) -> None:
    """A worker that is killed as soon as so many trials are under way."""
    child = start(work, plan, place)
    while len(list(place.glob("trials/*/checkpoints"))) < trials and child.is_alive():
        time.sleep(0.01)
    child.kill()
    child.join()
    assert child.exitcode == -signal.SIGKILL


def test_a_killed_worker_loses_nothing(tmp_path: Path, finished: Studies) -> None:
    plan = sweep()
    work_and_die(plan, tmp_path, trials=1)
    work(plan, tmp_path)
    studies = Studies(plan, Home.at(tmp_path))
    assert studies.complete
    for ours, theirs in zip(studies.tested(), finished.tested(), strict=True):
        np.testing.assert_array_equal(ours.group.values(), theirs.group.values())


def test_a_stopped_worker_releases_its_trial(tmp_path: Path) -> None:
    plan = sweep(algorithms={"fedavg": {}}, seeds=[0])
    stopping = TrialRunner(plan, Home.at(tmp_path), after_round=lambda _: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt):
        stopping.work()
    board = Studies(plan, Home.at(tmp_path)).boards["fedavg"]
    assert [standing.state for standing in board.standings()] == ["free", "free"]
    work(plan, tmp_path)
    (resumed,) = (p for p in (tmp_path / "trials").iterdir() if "resumed" in RunFolder.open(p).environment)
    assert RunFolder.open(resumed).status["state"] == "finished"


def test_runs_at_once_are_those_of_one_by_one(tmp_path: Path, finished: Studies) -> None:
    plan = sweep("engine=vectorized")
    work(plan, tmp_path)
    studies = Studies(plan, Home.at(tmp_path))
    assert [winner.point for winner in studies.winners()] == [winner.point for winner in finished.winners()]
    for ours, theirs in zip(studies.tested(), finished.tested(), strict=True):
        loss = Measure("test", "loss")
        for mine, other in zip(ours.group.runs, theirs.group.runs, strict=True):
            np.testing.assert_allclose(mine.values(loss), other.values(loss), rtol=1e-5)
            assert NOTE in mine.environment.notes


def test_runs_at_once_that_are_killed_are_gone_on_with(tmp_path_factory: pytest.TempPathFactory) -> None:
    """To the same bits, although other runs are side by side then."""
    whole, tmp_path = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("killed")
    plan = sweep("engine=vectorized", "schedule.checkpoint_every=1")
    work(plan, whole)
    finished = Studies(plan, Home.at(whole))
    work_and_die(plan, tmp_path, trials=3)
    work(plan, tmp_path)
    studies = Studies(plan, Home.at(tmp_path))
    assert studies.complete
    assert len(list((tmp_path / "trials").iterdir())) == 6
    assert [winner.point for winner in studies.winners()] == [winner.point for winner in finished.winners()]
    for ours, theirs in zip(studies.tested(), finished.tested(), strict=True):
        for mine, other in zip(ours.group.runs, theirs.group.runs, strict=True):
            assert mine.records["value"].equals(other.records["value"])


def test_runs_at_once_stop_after_the_round(tmp_path: Path) -> None:
    plan = sweep("engine=vectorized", algorithms={"fedavg": {}}, seeds=[0])
    told: list[int] = []

    def stop_once(now: Progress) -> None:
        if not told:
            signal.raise_signal(signal.SIGTERM)  # to this thread: the main one, which handles it, is not woken
            with stop_on_signal() as asked:  # what the main thread is asked
                while not asked:
                    time.sleep(0.01)
        told.append(now.round)

    with pytest.raises(KeyboardInterrupt):
        TrialRunner(plan, Home.at(tmp_path), after_round=stop_once).work()
    assert set(told) == {1}
    board = Studies(plan, Home.at(tmp_path)).boards["fedavg"]
    assert [standing.state for standing in board.standings()] == ["free", "free"]
    states = [RunFolder.open(path).status for path in (tmp_path / "trials").iterdir()]
    assert ("interrupted", 1) in [(status["state"], status["rounds"]) for status in states]
    work(plan, tmp_path)
    assert Studies(plan, Home.at(tmp_path)).complete
    for path in (tmp_path / "trials").iterdir():
        assert NOTE in read_run(path).environment.notes, "also of those that went on alone"


def test_divergence_is_a_result_and_no_winner_is_a_failure(tmp_path: Path) -> None:
    plan = sweep(algorithms={"fedavg": {}}, grid={"local": {"lr": [1e38, 0.5]}}, seeds=[0])
    work(plan, tmp_path / "one")
    studies = Studies(plan, Home.at(tmp_path / "one"))
    assert studies.winners()[0].point == {"local.lr": 0.5}
    assert not studies.broken
    assert studies.failures()[0].startswith("diverged: fedavg, {'local.lr': 1e+38}: round 1")
    plan = sweep(algorithms={"fedavg": {}}, grid={"local": {"lr": [1e38]}})
    work(plan, tmp_path / "none")
    studies = Studies(plan, Home.at(tmp_path / "none"))
    assert studies.complete
    assert studies.broken
    assert studies.tested() == []


def test_nothing_is_tried_where_there_is_nothing_to_choose(tmp_path: Path) -> None:
    plan = sweep(grid={"local": {"lr": 0.5}}, algorithms={"fedavg": {}, "propfair": {"M": [5.0]}})
    studies = run_sweep(plan, Home.at(tmp_path), workers=0)
    assert not (tmp_path / "trials").exists()
    assert len(list((tmp_path / "final").iterdir())) == 4
    tested = studies.tested()
    assert [one.winner.point for one in tested] == [{}, {"algorithm.M": 5.0}]
    assert any("nothing to choose" in note for note in result_table(plan, tested).notes)
    assert json.loads(json.dumps(result_json(plan, tested, []), allow_nan=False))["algorithms"][0]["value"] is None


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("criterion", "said"),
    [("worst10 of f1", "where there is: accuracy, loss"), ("nash of loss", "of loss less is better")],
)
def test_a_criterion_that_no_trial_has_is_refused_before_any(
    tmp_path: Path, workers: int, criterion: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        run_sweep(sweep(criterion=criterion), Home.at(tmp_path), workers=workers)
    assert list(tmp_path.iterdir()) == [], "the folder is free for the sweep that was meant"


def test_tpe_with_pruning(tmp_path: Path) -> None:
    plan = sweep(
        algorithms={"fedavg": {}}, seeds=[0], grid={"local": {"lr": {"low": 1e-4, "high": 1.0, "log": True}}},
        search={"sampler": "tpe", "trials": 6, "pruning": True},
    )  # fmt: skip
    work(plan, tmp_path)
    board = Studies(plan, Home.at(tmp_path)).boards["fedavg"]
    states = [standing.state for standing in board.standings()]
    assert set(states) <= {"done", "pruned"}
    assert states.count("done") >= 3
    rates = [trial.params["local.lr"] for trial in board.study.get_trials()]
    assert len(set(rates)) == 6
    assert all(1e-4 <= rate <= 1 for rate in rates)


def test_the_first_claim_stands(tmp_path: Path) -> None:
    storage = open_storage(f"sqlite:///{tmp_path}/a.db")
    one, two = (Board(open_study(storage, "s", "f"), 2) for _ in range(2))
    (first,) = one.claim([({}, {})] * 2)
    assert two._take([(0, 0, {}, {}, {})]) == []  # as if it had not seen the first one yet
    (second,) = two.claim([({}, {})] * 2)
    assert (first.point, second.point) == (0, 1)
    assert one.claim([({}, {})] * 2) == []
    first.release()
    (again,) = two.claim([({}, {})] * 2)
    assert again.point == 0
    again.done(0.5, {"seconds": 1.0})
    second.pruned()
    assert [standing.state for standing in one.standings()] == ["done", "pruned"]


def test_several_points_are_claimed_at_once(tmp_path: Path) -> None:
    board = Board(open_study(open_storage(f"sqlite:///{tmp_path}/a.db"), "s", "f"), 5)
    some = board.claim([({}, {})] * 5, first=3, most=3, about=lambda point: {"label": f"point {point}"})
    assert [claim.point for claim in some] == [3, 4, 0]
    taken = [standing.trial for standing in board.standings() if standing.state == "running"]
    assert [trial and said_of(trial)["label"] for trial in taken] == ["point 0", "point 3", "point 4"]
    assert [claim.point for claim in board.claim([({}, {})] * 5, most=9)] == [1, 2]


def test_a_claim_without_a_sign_of_life_is_free_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board(open_study(open_storage(f"sqlite:///{tmp_path}/a.db"), "s", "f"), 1)
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    (claim,) = board.claim([({}, {})])
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    monkeypatch.setattr(claims, "GRACE_SECONDS", 0.2)
    assert board.standings()[0].state == "running"
    time.sleep(0.3)
    claim.beat(1)
    assert board.standings()[0].state == "running"
    time.sleep(0.3)
    assert board.standings()[0].state == "free"


@pytest.mark.parametrize("name", ["sweep.db", "sweep.db-wal", "trials", "final"])
def test_a_sweep_is_not_written_through_links(tmp_path: Path, name: str) -> None:
    out, outside = tmp_path / "sent", tmp_path / "outside"
    out.mkdir()
    outside.mkdir()
    (out / name).symlink_to(outside / "treasure" if "." in name else outside)
    with pytest.raises(PropFairError, match=f"{name}.* is a link"):
        Home.at(out)
    assert not list(outside.iterdir())


def test_a_storage_that_can_not_be_opened() -> None:
    with pytest.raises(ConfigError, match="can't open the storage"):
        open_storage("nonsense://here")


def test_worker_processes(tmp_path: Path) -> None:
    plan = sweep(algorithms={"fedavg": {}}, seeds=[0])
    shown: list[list[str]] = []
    studies = run_sweep(
        plan,
        Home.at(tmp_path),
        workers=2,
        threads=1,
        show=lambda now: shown.append([row.label for row in now.tallies()]),
    )
    assert studies.complete
    assert shown[0] == ["fedavg"]
    assert shown[-1] == ["fedavg", "final"]
    assert not multiprocessing.active_children()
    (final,) = (tmp_path / "final").iterdir()
    assert RunFolder.open(final).environment["threads"] == 1
    with pytest.raises(ConfigError, match="at least 0"):
        run_sweep(plan, Home.at(tmp_path), workers=-1)


def test_tables_escape_what_they_must() -> None:
    table = TextTable("50 % & more", ["a|b", "c_d"], [["x|y", "1 ± 2"]], ["A note."])
    assert table.to_markdown() == "### 50 % & more\n\n| a\\|b | c_d |\n| --- | --- |\n| x\\|y | 1 ± 2 |\n\nA note.\n"
    assert table.to_csv() == "a|b,c_d\nx|y,1 ± 2\n"
    latex = table.to_latex()
    assert r"\caption{50 \% \& more. A note.}" in latex
    assert r"a\textbar{}b & c\_d \\" in latex
    assert r"x\textbar{}y & 1 $\pm$ 2 \\" in latex

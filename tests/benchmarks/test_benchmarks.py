import mmap
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.commands import COMMANDS, Timed, measure, measure_checkouts
from benchmarks.contestants import bare
from benchmarks.contestants import propfair as ours
from benchmarks.growth import Point, exponent
from benchmarks.harness import Contestant, ContestantError, Measured
from benchmarks.report import BEGIN, END, Results, draw, markdown, write_page
from benchmarks.workloads import WORKLOADS, find

import propfair
from benchmarks import harness, memory, precision, steps
from propfair.tuning.search import load_sweep


def results() -> Results:
    return Results(
        "2026-01-01",
        {"processor": "P"},
        3,
        1.0,
        [
            Measured("bare", "W1", [100.0, 120.0, 90.0], 1.0, 2**30),
            Measured("propfair", "W1", [250.0, 300.0, 260.0], 2.0, 2**29),
            Measured("propfair:bf16", "W1", [390.0, 400.0, 380.0], 2.0, 2**29),
            Measured("flower", "W1", error="no"),
            Measured("pfl", "W1", error="no", offered=False),
        ],
        [Point("clients", n, 0.1 * n**0.5, 1.0, 2**20 * n) for n in (10, 100, 1000)],
        {128: 0.021},
        [Timed("import torch", 1.5, 1.4), Timed("run", 2.25, 2.5)],
    )


def test_workloads_have_the_right_shapes() -> None:
    parameters = {w.name: sum(p.numel() for p in w.build_model().parameters()) for w in WORKLOADS.values()}
    assert parameters == {
        "W1": 11_181_642, "W1-loss": 11_181_642, "W2": 1_206_590, "W3": 610, "W3-mlp": 4_554, "W4": 293_584,
        "W5": 1_626_442,
    }  # fmt: skip
    for name in WORKLOADS:
        small = find(f"{name}@small")
        x, y = small.data()
        assert len(x) == len(y) == int(small.client_sizes().sum())
        assert small.build_model()(x[:2]).shape == (2, small.num_classes)


def test_workloads_can_be_changed_by_name() -> None:
    assert find("W3@num_clients=7,cohort=3,examples=5").client_sizes().tolist() == [5] * 7
    hidden = find("W3@hidden=14").build_model()
    assert sum(p.numel() for p in hidden.parameters()) == 1_004
    with pytest.raises(ValueError, match="unknown change 'colour=red'"):
        find("W3@colour=red")


def test_our_count_of_examples_is_that_of_the_records() -> None:
    workload = find("W3@num_clients=9,cohort=4")
    result = propfair.train(
        workload.build_model(), ours.federation(workload), "fedavg", rounds=3, participation=4, eval_every=99
    )  # fmt: skip
    rows = result.records.to_pylist()
    for round_ in (1, 2, 3):
        seen = {row["client"] for row in rows if row["round"] == round_ and row["metric"] == "weight"}
        assert {int(client) for client in seen} == set(ours.cohort(workload, round_))


def test_a_contestant_runs_the_rounds_it_is_told() -> None:
    sizes = find("W3@small").client_sizes()
    with Contestant("propfair:inprocess", "W3@small") as contestant:
        contestant.wait()
        assert contestant.startup > 0
        examples, seconds = contestant.run(3)
        assert examples == 3 * int(sizes.sum())
        assert seconds > 0
        assert memory.members(contestant.mark)
    assert memory.members(contestant.mark) == []


def test_a_contestant_that_fails_says_why() -> None:
    with Contestant("nobody", "W3@small") as contestant, pytest.raises(ContestantError, match="nobody"):
        contestant.wait()


def test_bare_loop_learns_what_propfair_learns() -> None:
    """One client, one full batch: no choice of order is left, so both must give the same loss."""
    workload = find("W3@num_clients=1,cohort=1,examples=8")
    x, y = workload.data()
    model = workload.build_model()
    bare._train(model, x, y, workload)
    result = propfair.train(
        workload.build_model(), ours.federation(workload), "fedavg", rounds=1, lr=workload.lr, batch_size=10
    )
    for mine, theirs in zip(result.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_memory_of_this_process() -> None:
    before = memory.pss(os.getpid())
    with mmap.mmap(-1, 64 << 20) as block:  # new pages, whatever the allocator has kept
        block.write(b"1" * len(block))
        assert memory.pss(os.getpid()) - before > 50 << 20
    assert memory.pss(2**22 + 1) == 0


def test_exponent() -> None:
    assert exponent([1, 10, 100], [3.0, 30.0, 300.0]) == pytest.approx(1.0)
    assert exponent([1, 10, 100], [5.0, 5.0, 5.0]) == pytest.approx(0.0)


def test_tables() -> None:
    text = markdown(results())
    assert "| W1 | propfair | float32 | 260 (250-300) | 2.60 |  | >= 2.4 bare | 2.0 s | 512 MiB |" in text
    assert "| W1 | propfair | bf16 | 390 (380-400) | 3.90 |  | >= 3.3 bare |" in text
    assert "| W1 | flower | float32 | failed |" in text
    assert "| W1 | pfl | float32 | no such algorithm |" in text
    assert "2.1 % with 128 examples" in text
    assert "| run | 2.2 s | 0.8 s | 2.5 s |" in text
    assert "time ~ clients^0.50, memory ~ clients^1.00" in text


def test_page_keeps_what_is_around_the_results(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for _ in range(2):
        write_page(results(), page, tmp_path / "performance.svg")
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert text.count("260 (250-300)") == 1
    page.write_text("no marks")
    with pytest.raises(ValueError, match="must have the lines"):
        write_page(results(), page, None)


def test_results_survive_the_file_and_are_drawn(tmp_path: Path) -> None:
    results().save(tmp_path / "r.json")
    assert Results.load(tmp_path / "r.json") == results()
    draw(results(), tmp_path / "r.svg")
    assert "<svg" in (tmp_path / "r.svg").read_text()[:400]


def test_results_of_several_calls_are_joined() -> None:
    first = replace(results(), measured=[Measured("bare", "W3", [1.0], 1.0, 1), *results().measured])
    second = Results("2026-02-02", {"processor": "P"}, 3, 1.0, [Measured("bare", "W1", [7.0], 1.0, 1)])
    joined = second.added_to(first)
    assert [(m.workload, m.speed) for m in joined.measured] == [("W1", 7.0), ("W3", 1.0)]
    assert (joined.date, joined.growth, joined.commands) == ("2026-02-02", first.growth, first.commands)
    with pytest.raises(ValueError, match="of the same machine"):
        replace(second, machine={"processor": "Q"}).added_to(first)


def test_commands_of_two_checkouts(tmp_path: Path) -> None:
    for name, code in ("old", 0), ("new", 3):
        (tmp_path / name / "src").mkdir(parents=True)
        (tmp_path / name / "src" / "which_one.py").write_text(f"raise SystemExit({code})")
    command = {"import": ("-c", "import which_one")}
    ((old, again),) = measure_checkouts(1, [tmp_path / "old"] * 2, command)
    assert old.name == again.name == "import"
    with pytest.raises(RuntimeError, match="ended with code 3"):
        measure_checkouts(1, [tmp_path / "old", tmp_path / "new"], command)


def test_commands_are_timed_and_failures_are_told() -> None:
    (timed,) = measure(1, {"sum": ("-c", "sum(range(10**6))")})
    assert timed.name == "sum"
    assert 0 < timed.processor < timed.seconds + 1
    with pytest.raises(RuntimeError, match="ended with code 3"):
        measure(1, {"broken": ("-c", "raise SystemExit(3)")})


def test_bf16_against_float32(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(precision, "SETUPS", {"digits": ("data=digits", "model=logistic", "schedule.rounds=2")})
    mean, worst = precision.compare("digits", [0, 1], tmp_path, 0.95)
    assert mean.startswith("| digits | mean | ")
    assert worst.startswith("| digits | worst10 | ")
    assert mean.endswith(("| yes |", "| no |"))
    assert len(list(tmp_path.glob("*/records.parquet"))) == 4


def test_the_sweep_has_a_hundred_trials() -> None:
    sweep = load_sweep(harness.ROOT / "benchmarks" / "sweep.toml")
    assert sum(map(sweep.num_trials, sweep.contestants)) == 100
    assert any("sweep.toml" in word for command in COMMANDS.values() for word in command)


@pytest.mark.slow
def test_comparison_of_the_bare_loop_with_itself() -> None:
    python = sys.executable
    found = harness.compare("W3@small", {"bare": python, "nobody": python}, repeats=2, seconds=0.05)
    mine, nobody = found
    assert len(mine.speeds) == 2
    assert mine.peak_bytes > 100 << 20
    assert mine.startup > 0
    assert "nobody" in nobody.error
    assert nobody.offered
    assert "Traceback" not in nobody.error


@pytest.mark.slow
def test_a_peer_says_what_it_does_not_offer() -> None:
    pytest.importorskip("flwr", reason="needs the extra: pip install 'propfair[flower]'")
    (flower,) = harness.compare("W1-loss", {"flower": sys.executable}, repeats=1, seconds=0.01)
    assert not flower.offered
    assert flower.error.startswith("Flower has no algorithm")


def test_parts_of_a_step() -> None:
    found = steps.measure("W4@small", "bf16", 1)
    assert found.at_best > 0
    assert found.products > 0
    assert found.normalising == 0  # an LSTM has none
    parts = (found.products, found.copies, found.normalising, found.pools, found.sums, found.rest)
    assert sum(parts) == pytest.approx(found.step)

"""Damaged files of any kind, read by every command: the same numbers, or a line that names the file."""

import re
import shutil
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import propfair
from propfair.errors import PropFairError, PropFairWarning
from propfair.runs.config import make_config
from propfair.runs.launch import run
from tests.cli.inside import Outcome, call
from tests.runs.killed import dying, start, train_and_die
from tests.trust.damage import Damage, damages
from tests.unit.official import write_tiny_imagenet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
TINY = ("data=synthetic", "data.num_clients=4", "model=logistic", "local.batch_size=32", "schedule.eval_every=2")
SWEEP = """
name = "small"
seeds = [0, 1]
[run]
data = {name = "synthetic", num_clients = 4}
model = "logistic"
schedule = {rounds = 2, eval_every = 1}
[algorithms.fedavg]
local.lr = [0.05, 0.2]
[algorithms.propfair]
"""
Command = list[str] | Callable[[Path], None]  # words of a command line, or what is done from Python in a folder
Answers = dict[str, tuple[Outcome, dict[str, bytes]]]
RESULTS = (".html", ".svg", ".parquet", ".safetensors", ".json", ".csv")


def ask(commands: Iterable[Command], where: Path, also: str) -> Answers:
    """What each command says, and the files that it writes below out/ and, to resume, `also`."""
    answers: Answers = {}
    for command in commands:
        shutil.rmtree(where / "out", ignore_errors=True)
        (where / "out").mkdir()
        if callable(command):
            said, name, goes_on = from_python(command, where), command.__name__, command.__name__ == "go_on"
        else:
            said, name, goes_on = call(*command, cwd=where), " ".join(command), command[0] == "resume"
        trained = [path for path in where.glob(f"{also}/*") if path.suffix != ".json"] if goes_on else []
        files = [path for path in (*(where / "out").rglob("*"), *trained) if path.suffix in RESULTS]
        written = {
            str(path.relative_to(where)): path.read_bytes()
            for path in files
            if path.suffix != ".json" or path.parent.name == "out"  # a run's own has times and the place in it
        }
        answers[f"{len(answers)}: {name}"] = (said, written)
    return answers


def from_python(work: Callable[[Path], None], where: Path) -> Outcome:
    """What a user sees who does it from Python: nothing, warnings, or an error of ours."""
    error: Exception | None = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PropFairWarning)
        try:
            work(where)
        except Exception as raised:
            error = raised
    told = "".join(f"warning: {one.message}\n" for one in caught)
    if isinstance(error, PropFairError):
        return Outcome(2, "", f"{told}error: {error}")
    return Outcome(0 if error is None else 1, "", told, error)


def numbers(answer: tuple[Outcome, dict[str, bytes]]) -> tuple[int, str, dict[str, bytes]]:
    """All but the time of day, and the time that it took."""
    said, written = answer
    pages = {name: re.sub(rb'"(written|seconds)":("[^"]*"|[\d.]+)', b"", content) for name, content in written.items()}
    return said.code, re.sub(r"\d+(\.\d+)? s\b", "", re.sub(r'"seconds": [\d.]+', "", said.stdout)), pages


def verdict(damage: Damage, before: Answers, after: Answers) -> str | None:
    """What is wrong with how damage was taken; None: nothing."""
    names = {part for part in Path(damage.file).parts if part != "checkpoints"}
    for command, answer in after.items():
        said = answer[0]
        if said.crash is not None:
            return f"{damage} {command}: {said.crash!r}"
        told = said.stderr + said.stdout
        named = any(name in told for name in names) and ("warning:" in told or "error:" in told)
        if not named and numbers(answer) != numbers(before[command]):
            return f"{damage} {command}: silent\n{before[command][0]}\n{said}"
    return None


def battery(
    place: Path, commands: list[Command], home: Path, total: int, *, only: str = "**/*", also: str = "-"
) -> None:
    """Copies of the place, each damaged once and read by every command.

    Args:
        place: what is copied.
        commands: run in the copy.
        home: of the copies.
        total: how many.
        only: the files that are damaged.
        also: a folder of the copy whose files are results.
    """

    def fresh() -> Path:
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(place, home)
        return home

    before = ask(commands, fresh(), also)
    assert all(said.code == 0 for said, _ in before.values()), [said for said, _ in before.values()]
    wrong = []
    for damage in damages(place, total, only=only):
        damage.do(fresh())
        found = verdict(damage, before, ask(commands, home, also))
        if found:
            wrong.append(found)
    assert not wrong, f"{len(wrong)} of {total}:\n" + "\n".join(wrong[:20])


def test_a_finished_run(tmp_path: Path) -> None:
    place = tmp_path / "place"
    run(make_config({}, [*TINY, "schedule.rounds=4", "algorithm=fedavg"]), place / "one")
    run(make_config({}, [*TINY, "schedule.rounds=4", "algorithm=propfair", f"start={place / 'one'}"]), place / "two")
    commands: list[Command] = [
        ["report", "one", "two", "-o", "out/page.html"],
        ["table", "one", "two", "-o", "out/table.json", "-o", "out/table.csv"],
        ["keep", "one", "two", "-o", "out/kept.parquet"],
        ["certify", "two", "one", "--format", "json", "-o", "out/certificate.png"],
        ["certify", "--paired", "two", "one", "--format", "json", "-o", "out/certificate.png"],
        ["figure", "curves", "one", "two", "-o", "out/curves.svg"],
        ["resume", "two", "--format", "json"],
        ["run", "--from", "two", "schedule.rounds=1", "-q", "--format", "json", "-o", "out/more"],
        ["finetune", "one", "--with", "fedavg", "schedule.rounds=1", "-q", "--format", "json", "-o", "out/tuned"],
    ]
    battery(place, commands, tmp_path / "home", 260)


@pytest.mark.parametrize("operation", [10, 14])  # with one checkpoint, and with two
def test_a_killed_run(tmp_path: Path, operation: int) -> None:
    place = tmp_path / "place"
    place.mkdir()
    settings = [*TINY, "schedule.rounds=8", "schedule.checkpoint_every=2", "algorithm=ditto"]
    child = start(train_and_die, make_config({}, settings), place / "one", operation)
    child.join()
    assert child.exitcode == -9
    assert list((place / "one" / "checkpoints").glob("checkpoint-*"))
    commands: list[Command] = [
        ["report", "one", "-o", "out/page.html"],
        ["resume", "one", "-q", "--format", "json"],
        ["report", "one", "-o", "out/page.html"],
    ]
    battery(place, commands, tmp_path / "home", 150, also="one")


def test_a_run_from_python(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    child = start(train_from_python_and_die, place / "one", 15)  # with two checkpoints
    child.join()
    assert child.exitcode == -9
    commands: list[Command] = [["report", "one", "-o", "out/page.html"], go_on, open_again]
    battery(place, commands, tmp_path / "home", 60, also="one")


def go_on(where: Path) -> None:
    propfair.resume(where / "one", model(), data())


def open_again(where: Path) -> None:
    torch.save(propfair.load(where / "one", model()).model.state_dict(), where / "out" / "model.safetensors")


def train_from_python_and_die(folder: Path, operation: int) -> None:
    dying(operation)
    propfair.train(model(), data(), algorithm="propfair", rounds=24, eval_every=6, out=folder)


def model() -> nn.Module:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def data() -> list[tuple[Tensor, Tensor]]:
    rng = torch.Generator().manual_seed(1)
    return [(torch.randn(40, 3, generator=rng), torch.arange(40) % 2) for _ in range(4)]


def test_a_deployment(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="needs the extra: pip install 'propfair[flower]'")
    from propfair.flower import client_app
    from tests.flower.grid import network, own_data
    from tests.flower.test_recording import MortalGrid, Stopped, strategy
    from tests.flower.test_strategy import run as deploy_on

    def grid() -> MortalGrid:
        return MortalGrid(client_app(network, own_data))

    def go_on(where: Path) -> None:
        served = strategy("propfair", where / "two")
        try:
            deploy_on(served, grid(), 4)
        finally:
            assert served._recording is not None
            served._recording._held.close()  # as the system does when the server ends

    place = tmp_path / "place"
    deploy_on(strategy("fedavg", place / "one"), grid(), 2)
    mortal = grid()
    mortal.left = 8
    cut = strategy("propfair", place / "two")
    with pytest.raises(Stopped):
        deploy_on(cut, mortal, 4)
    assert cut._recording is not None
    cut._recording._held.close()
    commands: list[Command] = [
        ["report", "one", "two", "-o", "out/page.html"],
        ["certify", "two", "one", "--format", "json", "-o", "out/certificate.png"],
        go_on,
        ["table", "one", "two", "-o", "out/table.json"],
    ]
    battery(place, commands, tmp_path / "home", 80, also="two")


def test_a_sweep(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "sweep.toml").write_text(SWEEP)
    again = ["sweep", "sweep.toml", "-o", "swept", "-w", "0", "-q", "--format", "json"]
    assert call(*again, cwd=place).code == 0
    commands: list[Command] = [
        again,
        ["report", "swept", "-o", "out/page.html"],
        ["table", "swept", "-o", "out/table.json"],
    ]
    battery(place, commands, tmp_path / "home", 200, only="swept/**/*")


def test_kept_records(tmp_path: Path) -> None:
    place = tmp_path / "place"
    run(make_config({}, [*TINY, "schedule.rounds=4", "algorithm=fedavg"]), place / "one")
    assert call("keep", "one", "-o", "kept.parquet", cwd=place).code == 0
    commands: list[Command] = [
        ["report", "kept.parquet", "-o", "out/page.html"],
        ["table", "kept.parquet", "-o", "out/table.csv"],
        ["figure", "curves", "kept.parquet", "-o", "out/curves.svg"],
    ]
    battery(place, commands, tmp_path / "home", 60, only="*.parquet")


def test_a_partition(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    save = ["partition", "synthetic", "data.num_clients=4", "--save", "saved.safetensors", "--picture", "p.png"]
    assert call(*save, cwd=place).code == 0
    settings = [*TINY, "data.saved=saved.safetensors", "schedule.rounds=1", "algorithm=fedavg"]
    commands: list[Command] = [["run", *settings, "-q", "--format", "json", "-o", "out/run"]]
    battery(place, commands, tmp_path / "home", 80, only="*.safetensors")


def test_a_cache(tmp_path: Path) -> None:
    place = tmp_path / "place"
    write_tiny_imagenet(place / "data")
    settings = ["tiny-imagenet", "data.num_clients=2", "data.partition=iid", "--data-dir", "data"]
    show = ["partition", *settings, "--format", "json"]
    assert call(*show, "--picture", "p.png", cwd=place).code == 0
    commands: list[Command] = [[*show, "--picture", "out/p.png"]]
    battery(place, commands, tmp_path / "home", 60, only="data/tiny-imagenet-200-*")

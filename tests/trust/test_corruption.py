"""Damaged files of any kind, read by every command: the same numbers, or a line that names the file."""

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from propfair.runs.config import make_config
from propfair.runs.launch import run
from tests.cli.inside import Outcome, call
from tests.runs.killed import start, train_and_die
from tests.trust.damage import Damage, damages
from tests.unit.official import write_tiny_imagenet

pytestmark = pytest.mark.slow
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
Answers = dict[str, tuple[Outcome, dict[str, bytes]]]
RESULTS = (".html", ".svg", ".parquet", ".safetensors")


def ask(commands: Iterable[list[str]], where: Path, also: str) -> Answers:
    """What each command says, and the files that it writes below out/ and, to resume, `also`."""
    answers: Answers = {}
    for command in commands:
        shutil.rmtree(where / "out", ignore_errors=True)
        (where / "out").mkdir()
        said = call(*command, cwd=where)
        files = [*(where / "out").rglob("*"), *(where.glob(f"{also}/*") if command[0] == "resume" else ())]
        written = {str(path.relative_to(where)): path.read_bytes() for path in files if path.suffix in RESULTS}
        answers[f"{len(answers)}: {' '.join(command)}"] = (said, written)
    return answers


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
    place: Path, commands: list[list[str]], home: Path, total: int, *, only: str = "**/*", also: str = "-"
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
    assert all(said.code == 0 for said, _ in before.values()), before
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
    commands = [
        ["report", "one", "two", "-o", "out/page.html"],
        ["certify", "two", "one", "--format", "json", "-o", "out/certificate.png"],
        ["certify", "--paired", "two", "one", "--format", "json", "-o", "out/certificate.png"],
        ["figure", "curves", "one", "two", "-o", "out/curves.svg"],
        ["resume", "two", "--format", "json"],
        ["run", "--from", "two", "schedule.rounds=1", "-q", "--format", "json", "-o", "out/more"],
    ]
    battery(place, commands, tmp_path / "home", 400)


@pytest.mark.parametrize("operation", [10, 14])  # with one checkpoint, and with two
def test_a_killed_run(tmp_path: Path, operation: int) -> None:
    place = tmp_path / "place"
    place.mkdir()
    settings = [*TINY, "schedule.rounds=8", "schedule.checkpoint_every=2", "algorithm=ditto"]
    child = start(train_and_die, make_config({}, settings), place / "one", operation)
    child.join()
    assert child.exitcode == -9
    assert list((place / "one" / "checkpoints").glob("checkpoint-*"))
    commands = [
        ["report", "one", "-o", "out/page.html"],
        ["resume", "one", "-q", "--format", "json"],
        ["report", "one", "-o", "out/page.html"],
    ]
    battery(place, commands, tmp_path / "home", 150, also="one")


def test_a_sweep(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "sweep.toml").write_text(SWEEP)
    again = ["sweep", "sweep.toml", "-o", "swept", "-w", "0", "-q", "--format", "json"]
    assert call(*again, cwd=place).code == 0
    commands = [again, ["report", "swept", "-o", "out/page.html"]]
    battery(place, commands, tmp_path / "home", 200, only="swept/**/*")


def test_kept_records(tmp_path: Path) -> None:
    place = tmp_path / "place"
    run(make_config({}, [*TINY, "schedule.rounds=4", "algorithm=fedavg"]), place / "one")
    assert call("keep", "one", "-o", "kept.parquet", cwd=place).code == 0
    commands = [
        ["report", "kept.parquet", "-o", "out/page.html"],
        ["figure", "curves", "kept.parquet", "-o", "out/curves.svg"],
    ]
    battery(place, commands, tmp_path / "home", 60, only="*.parquet")


def test_a_partition(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    save = ["partition", "synthetic", "data.num_clients=4", "--save", "saved.safetensors", "--picture", "p.png"]
    assert call(*save, cwd=place).code == 0
    settings = [*TINY, "data.saved=saved.safetensors", "schedule.rounds=1", "algorithm=fedavg"]
    commands = [["run", *settings, "-q", "--format", "json", "-o", "out/run"]]
    battery(place, commands, tmp_path / "home", 80, only="*.safetensors")


def test_a_cache(tmp_path: Path) -> None:
    place = tmp_path / "place"
    write_tiny_imagenet(place / "data")
    settings = ["tiny-imagenet", "data.num_clients=2", "data.partition=iid", "--data-dir", "data"]
    commands = [["partition", *settings, "--picture", "out/p.png", "--format", "json"]]
    assert call(*commands[0], "--picture", "p.png", cwd=place).code == 0
    battery(place, commands, tmp_path / "home", 60, only="data/tiny-imagenet-200-*")

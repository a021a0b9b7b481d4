"""Whatever is typed: it is done, or one line says what is wrong. Never a traceback."""

import contextlib
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from propfair.algorithms.base import ALGORITHMS
from propfair.data.base import SOURCES
from propfair.engines.session import ENGINES
from propfair.errors import PropFairError
from propfair.federation.partition import PARTITIONERS
from propfair.models.base import MODELS
from propfair.registry import Registry
from propfair.runs.config import RunConfig, make_config
from propfair.runs.settings import all_settings
from propfair.runs.toml import parse_toml, write_toml
from tests.cli.inside import Outcome, call
from tests.report.builders import write_run

SMALL = ("data.num_clients=3", "schedule.rounds=1", "algorithm=fedavg", "local.steps=1", "engine=inprocess")
BEYOND_UTF8 = "caf\udce9"  # a byte that is no UTF-8, as Python shows it
DIGITS = "9" * 5000


def is_told(done: Outcome) -> bool:
    """It ended well, or with an error on the last line."""
    lines = done.stderr.strip().splitlines()
    return done.is_clean and (done.code == 0 or bool(lines and ("error:" in lines[-1].lower() or lines[-1][0] in "│╰")))


@pytest.mark.parametrize(
    "settings",
    [
        ["data=5"],
        ["data=[1]"],
        ["algorithm.preset={a=1}"],
        ["server.participation=inf"],
        ["local.optimizer=SparseAdam"],
        ["local.optimizer=LBFGS"],
        ["local.optimizer=Adam", "local.options={wrong=1}"],
        ["local.batch_size=18446744073709551616"],
        [f"local.steps={'9' * 29}"],
        ["data.partition=dirichlet-quantity", "data.partition.beta=1e308", "data.partition.min_samples=0"],
        [f"algorithm.M={DIGITS}"],
        [f"seed={DIGITS}"],
        [f"model.width={'[' * 3000}"],
        ["engine=vectorized", "engine.memory=inf"],
        ["data.folder=a\x01b"],
        ["data.folder=a\x7fb"],
        ["schedule.rounds=2147483648"],
        ["server.server_lr=1e308"],
        ["algorithm=propfair", "algorithm.M=1e308"],
        ["local.lr=1e308"],
        ["device=nowhere"],
        ["=1"],
    ],
    ids=lambda settings: settings[-1][:40],
)
def test_settings_that_can_not_be_are_refused(tmp_path: Path, settings: list[str]) -> None:
    done = call("run", *SMALL, *settings, "-o", "out", cwd=tmp_path)
    if settings[0].startswith("data.folder"):  # strange, and no harm
        assert done.code == 0, done
    else:
        assert done.code == 2, done
        assert is_told(done), done
        assert len(done.stderr) < 2000, "an error is for people"
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("setting", ["server.server_lr=1e38", "algorithm.M=1e38", "local.lr=1e38"])
def test_numbers_that_overflow_end_in_one_line(tmp_path: Path, setting: str) -> None:
    done = call("run", *SMALL, "algorithm=propfair", setting, "-o", "out", cwd=tmp_path)
    assert done.is_clean, done
    assert done.code == 0 or "diverged" in done.stdout, done


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", *SMALL, "-o", "x" * 300],
        ["run", *SMALL, "-o", BEYOND_UTF8],
        ["report", "one", "--title", BEYOND_UTF8],
        ["report", "one", "-o", "x" * 300],
        ["watch", ".", "--port", "70000"],
        ["watch", ".", "--host", "nowhere.invalid"],
        ["figure", "trade", "one", "--width", "1e5"],
        ["figure", "trade", "one", "--height", "nan"],
        ["figure", "trade", "one", "-o", "x.y"],
        ["table", "one", "-o", "x.y"],
        ["table", "one", "-o", "x" * 300 + ".md"],
        ["table", "one", "--statistics", "luck"],
        ["table", "one", "--measure", "luck"],
        ["table", "one", "--level", "95"],
        ["table", "one", "--digits", "99"],
        ["example", "nash", "--picture", "x.y"],
        ["example", "nash", "--picture", "missing/x.png"],
        ["partition", "digits", "--picture", "x.y"],
        ["certify", "one", "one", "-o", "x.y"],
        ["sweep", "sweep.toml", "--out", "sweep.toml"],
        ["sweep", "sweep.toml", "--storage", "nonsense"],
        ["run", "-c", "one"],
        ["run", "-c", "/dev/null", "--from", "missing"],
        ["resume", "missing"],
        ["resume", "sweep.toml"],
        ["resume", "two\nlines"],
        ["compare", "fedavg:M", *SMALL],
        ["finetune", "one", "--with", "nobody"],
    ],
    ids=lambda arguments: " ".join(arguments)[-40:],
)
def test_options_that_can_not_be_are_refused(tmp_path: Path, arguments: list[str]) -> None:
    write_run(tmp_path / "one")
    (tmp_path / "sweep.toml").write_text("[run]\nschedule.rounds = 1\n[algorithms.fedavg]\n")
    done = call(*arguments, cwd=tmp_path)
    assert done.code in (1, 2), done
    assert is_told(done), done


@pytest.mark.parametrize("error", [MemoryError("52 GiB"), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_what_is_too_large_for_the_machine_ends_in_one_line(
    tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("propfair.runs.launch.build_federation", refuse)
    done = call("run", *SMALL, "-o", "out", cwd=tmp_path)
    assert done.code == 2, done
    assert is_told(done), done
    assert "not enough memory" in done.stderr


@pytest.mark.parametrize("text", ["[", "seed = ", "\x00", "[[data]]", 'data = {name = "digits"', f"seed = {DIGITS}"])
def test_a_file_that_is_not_toml_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "wrong.toml").write_text(text)
    for command in ("run", "compare"):
        done = call(command, "-c", "wrong.toml", cwd=tmp_path)
        assert done.code == 2, done
        assert is_told(done), done
    assert call("sweep", "wrong.toml", cwd=tmp_path).code == 2


def test_settings_are_read_back_as_they_were_written() -> None:
    odd = {
        "text": 'a "quoted" \\ line\n\t\x00\x1f\x7f é \u2028',
        "numbers": [1.5, float("inf"), float("-inf"), 10**30, -0.0, 1e-320],
        "nested": {"with a blank": {"": 1, "é": [{"a": True, "b": {"c": []}}]}},
        "empty": {},
    }
    assert parse_toml(write_toml(odd), "here") == odd


# The fuzzer.

VALUES = (
    "inf", "-inf", "nan", "0", "-1", "1", "2", "0.5", "1e308", "-1e308", "1e-320", "18446744073709551616", "9" * 29,
    DIGITS, "[" * 3000, "", "''", "'x'", "x", "x:y", "a.b", "true", "{}", "{a=1}", "{name='mlp'}", "[]", "[1]", "[[1]]",
    "['x']", "2020-01-01", "\x01", "'\\u0000'", "é", "=", "null", "None", "*", "sgd", "fedavg", "digits", "test",
    "['test']", "constant", "step(0, 1)", "cosine(0)", "1_0", "0x10", "+5", "..", "a = 1\nb = 2",
)  # fmt: skip
COSTLY = ("rounds", "steps", "epochs", "workers", "max_tries", "num_clients", "seq", "name")


def some_settings(rng: random.Random) -> list[str]:
    """One to three settings: true keys with values of any kind, and keys that there are not."""
    parts: dict[str, Registry[Any]] = {
        "algorithm": ALGORITHMS,
        "engine": ENGINES,
        "model": MODELS,
        "data": SOURCES,
        "data.partition": PARTITIONERS,
    }
    found = []
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.5:
            key, registry = rng.choice(list(parts.items()))
            name = rng.choice(registry.names())
            options = registry.options(name)
            found.append(f"{key}={name}")
            if options:
                found.append(f"{key}.{rng.choice(options).name}={rng.choice(VALUES)}")
        else:
            known = [setting.key for setting in all_settings()]
            key = rng.choice([*known, "x", "data.x.y", "local", "server", "data.split", "algorithm.preset", "a b", "."])
            found.append(f"{key}={rng.choice(VALUES)}")
    return found


def accepted(settings: list[str]) -> RunConfig | None:
    """The config; None if it is refused by an error of ours."""
    try:
        return make_config({}, settings)
    except PropFairError:
        return None


def check_settings(seed: int) -> bool:
    settings = some_settings(random.Random(seed))
    try:
        config = accepted(settings)
        if config is not None:
            again = make_config(parse_toml(config.to_toml(), "here"))
            assert again.to_toml() == config.to_toml()
    except Exception as error:
        error.add_note(f"seed {seed}: {settings}")
        raise
    return config is not None


@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.slow) for block in range(1, 20))])
def test_random_settings_are_refused_or_read_back_the_same(block: int) -> None:
    found = [check_settings(seed) for seed in range(400 * block, 400 * (block + 1))]
    assert 0 < sum(found) < len(found), "of both kinds there are some"


def some_command(rng: random.Random) -> list[str]:
    """A command that is cheap if it is done at all."""
    cheap = [one for one in some_settings(rng) if not any(word in one.partition("=")[0] for word in COSTLY)]
    value, place = rng.choice(VALUES)[:40], rng.choice(["out", "one", "one/config.toml", "\n", "a/b", "-", "..", "x.y"])
    return rng.choice(
        [
            ["run", *SMALL, *cheap, "-o", place],
            ["run", *SMALL, *cheap, f"--seed={value}", "-o", "out"],
            ["run", *SMALL, *cheap, f"--device={value}", "-o", "out"],
            ["partition", "digits", "data.num_clients=3", *cheap, "--picture", place],
            ["figure", rng.choice(["trade", "curves", "x"]), "one", f"--measure={value}", "-o", "f.png"],
            ["certify", "one", rng.choice(["one", "two", "missing"]), f"--alpha={value}", "-o", "c.png"],
            ["certify", "one", "two", f"--M={value}", "-o", "c.png"],
            ["report", "one", f"--title={value}", "-o", "r.html"],
        ]
    )


@contextlib.contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """A case that takes longer counts as one that can be interrupted."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs alarms")
@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.slow) for block in range(1, 60))])
def test_random_commands_are_done_or_refused(tmp_path: Path, block: int) -> None:
    write_run(tmp_path / "one")
    write_run(tmp_path / "two", seed=1)
    for seed in range(20 * block, 20 * (block + 1)):
        command = some_command(random.Random(seed))
        with at_most(20):
            done = call(*command, *["--force"] * (command[0] == "run"), cwd=tmp_path)
        assert done.is_clean, (seed, command, done)
        assert is_told(done) or done.code in (1, 130), (seed, command, done)

"""The plain Flower app of examples/quickstart, made fair by exactly the diff that stands in docs/guides/flower.md."""

import importlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr", reason="needs the extra: pip install 'propfair[flower]'")
pytest.importorskip("sklearn", reason="the example's digits need the extra: pip install 'propfair[data]'")

from flwr.app import Context, RecordDict

import propfair
from tests.flower.grid import LocalGrid

ROOT = Path(__file__).parents[2]
CLIENTS = 3
SETTINGS: dict[str, Any] = {"num-server-rounds": 2, "local-epochs": 2, "learning-rate": 0.05, "batch-size": 10_000}
Make = Callable[[str | None], Path]


def the_diff() -> str:
    text = (ROOT / "docs" / "guides" / "flower.md").read_text(encoding="utf-8")
    found = re.search(r"^```diff\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def make_app(folder: Path, algorithm: str | None) -> Path:
    """A copy of the app; fair if an algorithm is named."""
    place = folder / "app"
    shutil.copytree(ROOT / "examples" / "quickstart", place, ignore=shutil.ignore_patterns("__pycache__"))
    if algorithm is not None:
        subprocess.run(["git", "apply", "--unidiff-zero", "-"], cwd=place, input=the_diff().encode(), check=True)
        server = place / "quickstart" / "server_app.py"
        text = server.read_text(encoding="utf-8")
        assert 'FairStrategy("propfair", model)' in text
        server.write_text(text.replace('"propfair"', f'"{algorithm}"'), encoding="utf-8")
    return place


def expected(algorithm: str, task: Any) -> dict[str, torch.Tensor]:
    """The same by propfair.train: whole batches, so that their order does not matter."""
    clients = [
        {
            "train": (data.images[data.index], data.labels[data.index]),
            "test": (data.images[:1], data.labels[:1]),
        }
        for data in (task.Digits(client, CLIENTS, False) for client in range(CLIENTS))
    ]
    local = propfair.LocalTraining(lr=0.05, momentum=0.9, epochs=2, batch_size=10_000)
    model = task.Net()
    propfair.train(model, clients, algorithm, rounds=2, local=local, engine="inprocess")
    return dict(model.state_dict())


def assert_same(found: Path, other: dict[str, torch.Tensor]) -> None:
    state = load_file(found)
    assert sorted(state) == sorted(other)
    for name in state:
        assert torch.allclose(state[name], other[name], rtol=0, atol=1e-6), name


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str | None], Any]]:
    def forget() -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == "quickstart"]:
            del sys.modules[name]

    def load(algorithm: str | None) -> Any:
        monkeypatch.syspath_prepend(str(make_app(tmp_path, algorithm)))
        forget()
        return tuple(importlib.import_module(f"quickstart.{part}") for part in ("client_app", "server_app", "task"))

    yield load
    forget()


@pytest.mark.parametrize("algorithm", ["fedavg", "propfair", "afl", "fedmgda+"])
def test_the_two_lines_make_it_fair(algorithm: str, imported: Any, tmp_path: Path) -> None:
    client, server, task = imported(algorithm)
    settings = {**SETTINGS, "out": str(tmp_path / "model.safetensors")}
    grid = LocalGrid(client.app, CLIENTS, run_config=settings)
    server.app(grid, Context(1, 0, {}, RecordDict(), settings))
    assert_same(tmp_path / "model.safetensors", expected(algorithm, task))


def test_the_fair_client_runs_under_the_plain_server(imported: Any, tmp_path: Path) -> None:
    """Flower's FedAvg averages by data, as ours does: the fair line changes nothing."""
    client, _, task = imported("propfair")
    plain = importlib.util.spec_from_file_location(
        "plain_server", ROOT / "examples" / "quickstart" / "quickstart" / "server_app.py"
    )
    assert plain is not None
    assert plain.loader is not None
    server: Any = importlib.util.module_from_spec(plain)
    plain.loader.exec_module(server)
    settings = {**SETTINGS, "out": str(tmp_path / "model.safetensors")}
    grid = LocalGrid(client.app, CLIENTS, run_config=settings)
    server.app(grid, Context(1, 0, {}, RecordDict(), settings))
    assert_same(tmp_path / "model.safetensors", expected("fedavg", task))

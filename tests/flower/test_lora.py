"""The example that fine-tunes adapters: only those travel, and the run says who is worst off."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra: pip install 'propfair[flower]'")
pytest.importorskip("peft", reason="needs the extra: pip install 'propfair[lora]'")
pytest.importorskip("faker", reason="needs the extra: pip install 'propfair[data]'")

from benchmarks.flower_grid import InProcessGrid
from flwr.app import Context, RecordDict

from propfair.runs.reading import read_run

EXAMPLE = Path(__file__).parents[2] / "examples" / "lora"


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield tuple(importlib.import_module(f"adapters.{part}") for part in ("client_app", "server_app", "task"))
    for name in [name for name in sys.modules if name.partition(".")[0] == "adapters"]:
        del sys.modules[name]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the packages that it brings
def test_only_adapters_travel_and_the_report_knows_the_worst_off(parts: Any, tmp_path: Path) -> None:
    client, server, task = parts
    settings: dict[str, Any] = {
        "algorithm": "propfair",
        "rounds": 3,
        "lr": 0.01,
        "batch-size": 32,
        "run": str(tmp_path / "run"),
    }
    names = list(task.LANGUAGES.values())
    grid = InProcessGrid(client.app, range(10, 14), settings, names)
    server.app(grid, Context(1, 0, {}, RecordDict(), settings))
    found = read_run(tmp_path / "run")
    assert found.status.state == "finished"
    assert found.clients.names == tuple(names)
    assert 0 < found.summary().worst < 1
    whole, travelling = task.Network(), task.Network().adapters()
    assert sum(map(len, travelling)) > 0
    assert 4 * sum(v.numel() for v in travelling.values()) < sum(v.numel() for v in whole.state_dict().values())
    assert all("lora" in name or "classifier" in name for name in travelling)

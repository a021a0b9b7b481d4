"""The example app for real: `flwr run` in simulation, and SuperLink and SuperNodes with TLS and node authentication."""

import contextlib
import importlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr", reason="needs the extra: pip install 'propfair[flower]'")
pytest.importorskip("ray", reason="Flower's simulation needs Ray: pip install 'propfair[flower]'")
pytest.importorskip("sklearn", reason="the example's digits need the extra: pip install 'propfair[data]'")

from propfair.algorithms import ALGORITHMS
from propfair.client import LocalTraining, Workload
from propfair.engines.inprocess import InProcess
from propfair.params import FlatModel
from propfair.server import Rounds, Server

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"
CLIENTS = 3
SECONDS = 580  # that a run may take on a busy machine

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="process groups"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module", autouse=True)
def environment() -> Iterator[None]:
    """Nothing from outside: no telemetry, no update check, no installation, no Ray of someone else."""
    settings = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_ADDRESS": "local",
        "OMP_NUM_THREADS": "1",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        for name, value in settings.items():
            patch.setenv(name, value)
        yield


def expected(name: str, rounds: int = 2) -> dict[str, torch.Tensor]:
    """The same run in one process."""
    task: Any = importlib.import_module("fairapp.task")
    model = FlatModel(task.network())
    local = LocalTraining(lr=0.1, batch_size=32, epochs=1)
    work = Workload(task.federation(CLIENTS), ALGORITHMS.make(name), local, seed=0)
    with InProcess(threads=1).start(model, work) as session:
        server = Server(session, Rounds(), model.params, model.buffers)
        for _ in range(rounds):
            server.run_round()
        return model.state_dict(server.params, server.buffers)


def assert_equal(found: Path, name: str) -> None:
    other = expected(name)
    state = load_file(found)
    assert sorted(state) == sorted(other)
    for key in state:
        assert torch.allclose(state[key], other[key], rtol=0, atol=1e-6), key


def config(name: str, out: Path, **others: Any) -> str:
    values = {"algorithm": f'"{name}"', "rounds": 2, "evaluate-every": 0, "out": f'"{out}"', **others}
    return " ".join(f"{key}={value}" for key, value in values.items())


def remaining(home: Path) -> list[int]:
    """Processes that belong to a Flower home."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"FLWR_HOME={home}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def assert_nothing_left(home: Path) -> None:
    deadline = time.monotonic() + 30
    while remaining(home) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not remaining(home)


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory, environment: None) -> Iterator[Any]:
    """Flower's simulation behind a SuperLink of our own, which `flwr run` would otherwise leave behind."""
    deploy: Any = importlib.import_module("deploy")
    home = tmp_path_factory.mktemp("simulation")
    port = deploy.free_port()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    env = {**os.environ, "FLWR_HOME": str(home)}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])
    command = ["flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
    with (home / "superlink.log").open("wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while not deploy.in_use(port) and time.monotonic() < deadline:
            time.sleep(0.2)
        yield env
    finally:
        deploy.end(process, signal.SIGTERM)
        process.wait(30)
    assert_nothing_left(home)


@pytest.mark.parametrize(
    "name", ["fedmgda+", pytest.param("propfair", marks=pytest.mark.slow), pytest.param("afl", marks=pytest.mark.slow)]
)
def test_flwr_run_in_simulation_equals_one_process(name: str, simulation: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "model.safetensors"
    size = f"num-supernodes={CLIENTS} client-resources-num-cpus=1 init-args-num-cpus=2"
    command = ["flwr", "run", str(EXAMPLE), "here", "--stream", "--federation-config", size]
    done = subprocess.run(
        [*command, "--run-config", config(name, out)],
        env=simulation, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert out.exists(), done.stdout[-4000:]
    assert_equal(out, name)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory, environment: None) -> Iterator[Any]:
    deploy: Any = importlib.import_module("deploy")
    folder = tmp_path_factory.mktemp("deployment")
    with deploy.Deployment(folder, CLIENTS, quiet=True) as made:
        yield made
    assert_nothing_left(folder / "flower")


def finish(process: "subprocess.Popen[str]") -> str:
    try:
        return process.communicate(timeout=SECONDS)[0]
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    "name", ["propfair", pytest.param("afl", marks=pytest.mark.slow), pytest.param("fedmgda+", marks=pytest.mark.slow)]
)
def test_a_deployment_with_tls_equals_one_process(name: str, deployment: Any, tmp_path: Path) -> None:
    out = tmp_path / "model.safetensors"
    log = finish(deployment.run(config(name, out)))
    assert out.exists(), log[-4000:]
    assert_equal(out, name)


def test_a_supernode_without_the_right_key_or_certificate_is_refused(deployment: Any, tmp_path: Path) -> None:
    certificates: Any = importlib.import_module("certificates")
    certificates.make(tmp_path, 1)  # of another federation
    once = ("--max-retries", "1", "--max-wait-time", "5")
    strangers = {
        "a key that is not registered": deployment.start_node(8, *once, key=tmp_path / "client-0"),
        "a server that it can't trust": deployment.start_node(
            9, *once, key=deployment.credentials / "client-0", ca=tmp_path / "ca.pem"
        ),
    }
    try:
        for what, process in strangers.items():
            assert process.wait(SECONDS) != 0, what
    finally:
        for process in strangers.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert "Failed to activate SuperNode" in deployment.log("supernode-8")
    assert "CERTIFICATE_VERIFY_FAILED" in deployment.log("supernode-9")


@pytest.mark.slow
def test_a_supernode_killed_in_a_round_does_not_stop_the_run(
    tmp_path_factory: pytest.TempPathFactory, environment: None
) -> None:
    deploy: Any = importlib.import_module("deploy")
    folder = tmp_path_factory.mktemp("killed")
    out = folder / "model.safetensors"
    with deploy.Deployment(folder, CLIENTS, quiet=True) as deployment:
        process = deployment.run(config("propfair", out, rounds=3))  # Flower misses heartbeats within a minute
        seen = ""
        for line in process.stdout:
            seen += line
            if "[ROUND 2/3]" in line:
                break
        os.killpg(deployment.nodes[1].pid, signal.SIGKILL)
        seen += finish(process)
    assert out.exists(), seen[-4000:]
    assert "round 1: weights" in seen
    for number in (2, 3):
        assert f"round {number}: weights [0.3825, 0.0, 0.6175], dropped [1]" in seen, seen[-4000:]


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, str(EXAMPLE / "deploy.py"), "--port", str(port)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.strip() == f"error: port {port} on 127.0.0.1 is in use: choose another with --port"

"""The example app for real: `flwr run` in simulation, and SuperLink and SuperNodes with TLS and node authentication."""

import contextlib
import importlib
import json
import os
import re
import shutil
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
from propfair.core.client import LocalTraining, Workload
from propfair.core.params import FlatModel
from propfair.core.rounds import Rounds
from propfair.engines.inprocess import InProcess
from propfair.engines.server import Server
from tests.flower.test_quickstart import assert_same, make_app
from tests.flower.test_quickstart import expected as same_by_train
from tests.flower.test_tasks import RULES as TASK_RULES
from tests.flower.test_tasks import expected as task_expected
from tests.tasks.scenes import SCENES

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
        "RAY_worker_niceness": "0",  # at Ray's low priority a busy machine would take minutes
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(EXAMPLE.parents[1]),  # the app with every task is made of what tests are made of
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        for name, value in settings.items():
            patch.setenv(name, value)
        yield


def expected(name: str, rounds: int = 2) -> tuple[dict[str, torch.Tensor], list[float]]:
    """The same run in one process: the model and, if clients have their own, the losses of those."""
    task: Any = importlib.import_module("fairapp.task")
    model = FlatModel(task.network())
    local = LocalTraining(lr=0.1, batch_size=32, epochs=1)
    work = Workload(task.federation(CLIENTS), ALGORITHMS.make(name), local, seed=0)
    with InProcess(threads=1).start(model, work) as session:
        server = Server(session, Rounds(), model.params, model.buffers)
        for _ in range(rounds):
            server.run_round()
        own = session.evaluate_personal("test", range(CLIENTS)).loss.tolist() if work.algorithm.personal else []
        return model.state_dict(server.params, server.buffers), own


def assert_equal(found: Path, name: str) -> None:
    other, _ = expected(name)
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


def server_apps(home: Path) -> list[int]:
    """Those that are ServerApps, and not dead."""
    found = []
    for number in remaining(home):
        with contextlib.suppress(OSError):
            if b"flwr-serverapp" in Path(f"/proc/{number}/cmdline").read_bytes():
                found.append(number)
    return found


def assert_nothing_left(home: Path) -> None:
    """Flower's processes look for a dead parent between two attempts to reach it, which may be 20 s apart."""
    deadline = time.monotonic() + 120
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
    lifeline = deploy.Lifeline()
    with (home / "superlink.log").open("wb") as log:
        process = lifeline.start(command, env=env, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while not deploy.in_use(port) and time.monotonic() < deadline:
            time.sleep(0.2)
        yield env
    finally:
        deploy.end(process, signal.SIGTERM)
        process.wait(30)
        lifeline.cut()
    assert_nothing_left(home)


def simulate(app: Path, run_config: str, environment: dict[str, str]) -> str:
    """`flwr run`; what it wrote."""
    size = f"num-supernodes={CLIENTS} client-resources-num-cpus=1 init-args-num-cpus=2"
    command = ["flwr", "run", str(app), "here", "--stream", "--federation-config", size, "--run-config", run_config]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    return done.stdout[-4000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "propfair", "afl", "fedmgda+"])
def test_flwr_run_in_simulation_equals_one_process(name: str, simulation: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "model.safetensors"
    log = simulate(EXAMPLE, config(name, out), simulation)
    assert out.exists(), log
    assert_equal(out, name)


EVERY_TASK = [f"{name}: {rule}" for name in SCENES for rule in TASK_RULES]
SOME_TASKS = ["several outputs: propfair", "tuple of inputs: afl", "tokens: fedmgda+"]


@pytest.mark.parametrize(
    "pairs", [pytest.param(SOME_TASKS, id="some"), pytest.param(EVERY_TASK, id="all", marks=pytest.mark.slow)]
)
def test_tasks_in_simulation_equal_one_process(pairs: list[str], simulation: dict[str, str], tmp_path: Path) -> None:
    log = simulate(Path(__file__).parent / "tasksapp", f"pairs='{'; '.join(pairs)}' out='{tmp_path}'", simulation)
    for pair in pairs:
        name, rule = pair.split(": ")
        found = tmp_path / f"{name}-{rule}.safetensors"
        assert found.exists(), log
        assert_same(found, dict(task_expected(name, rule).model.state_dict()))


@pytest.mark.slow
def test_personal_models_live_in_the_client_state_of_a_simulation(simulation: dict[str, str], tmp_path: Path) -> None:
    app = tmp_path / "app"
    shutil.copytree(EXAMPLE, app, ignore=shutil.ignore_patterns("__pycache__"))
    settings, server = app / "pyproject.toml", app / "fairapp" / "server_app.py"
    settings.write_text(settings.read_text().replace("fairapp.client_app:app", "fairapp.whole_client:app"))
    server.write_text(server.read_text() + TELLS_EVALUATIONS)
    out = tmp_path / "model.safetensors"
    log = simulate(app, config("ditto", out, **{"evaluate-every": 2}), simulation)
    assert out.exists(), log
    assert_equal(out, "ditto")
    found = json.loads(out.with_suffix(".json").read_text())["personal_loss"]
    assert [found[str(client)] for client in range(CLIENTS)] == pytest.approx(expected("ditto")[1], abs=1e-6)


TELLS_EVALUATIONS = """
    import json, pathlib
    pathlib.Path(str(config["out"])).with_suffix(".json").write_text(json.dumps(strategy.evaluations[2]))
"""


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
    "name", ["propfair", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedavg", "afl", "fedmgda+"))]
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
        assert re.search(rf"round {number}: weights \[0\.\d+, 0\.0, 0\.\d+\], dropped \[1\]", seen), seen[-4000:]


def until(process: "subprocess.Popen[str]", text: str) -> str:
    """What a run writes until a line has the text."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if text in line:
            return seen
    raise AssertionError(seen[-4000:])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.timeout(1800)
def test_a_server_that_is_killed_in_a_round_goes_on(
    tmp_path_factory: pytest.TempPathFactory, environment: None
) -> None:
    """First the ServerApp is killed, then the SuperLink with all that is around it."""
    deploy: Any = importlib.import_module("deploy")
    folder = tmp_path_factory.mktemp("comes-back")
    out = folder / "model.safetensors"
    settings = config("afl", out, rounds=4, run=f'"{folder / "run"}"')
    settings = settings.replace("evaluate-every=0", "evaluate-every=1")
    (folder / "one").mkdir()
    with deploy.Deployment(folder / "one", CLIENTS, quiet=True) as first:
        process = first.run(settings)
        until(process, "[ROUND 2/4]")
        for number in server_apps(folder / "one" / "flower"):
            os.kill(number, signal.SIGKILL)
        process.kill()
        process.communicate()
        process = first.run(settings)
        seen = until(process, "[ROUND 2/")
        assert "Going on after round" in seen
        os.killpg(first.link.pid, signal.SIGKILL)  # nobody waits for it: the worst case for those who watch it
        process.kill()
        process.communicate()
        assert not out.exists()
        assert json.loads((folder / "run" / "status.json").read_text())["state"] == "running"
        (folder / "two").mkdir()
        with deploy.Deployment(folder / "two", CLIENTS, quiet=True) as second:
            log = finish(second.run(settings))  # its ServerApp may find that of the first still there, and waits
        assert out.exists(), log[-4000:]
        assert not server_apps(folder / "one" / "flower")
    other, _ = expected("afl", 4)
    for key, value in load_file(out).items():
        assert torch.allclose(value, other[key], rtol=0, atol=1e-6), key
    assert json.loads((folder / "run" / "status.json").read_text())["state"] == "finished"


QUICKSTART = "num-server-rounds=2 local-epochs=2 learning-rate=0.05 batch-size=10000"
ALL_FOUR = ["fedavg", "propfair", "afl", "fedmgda+"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL_FOUR)
def test_the_quickstart_with_its_diff_in_simulation(name: str, simulation: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "model.safetensors"
    log = simulate(make_app(tmp_path, name), f'{QUICKSTART} out="{out}"', simulation)
    assert out.exists(), log
    assert_same(out, quickstart_expected(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL_FOUR)
def test_the_quickstart_with_its_diff_deployed_with_tls(name: str, deployment: Any, tmp_path: Path) -> None:
    out = tmp_path / "model.safetensors"
    log = finish(deployment.run(f'{QUICKSTART} out="{out}"', make_app(tmp_path, name)))
    assert out.exists(), log[-4000:]
    assert_same(out, quickstart_expected(name))


def quickstart_expected(name: str) -> dict[str, torch.Tensor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE.parent / "quickstart"))
        return same_by_train(name, importlib.import_module("quickstart.task"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nothing_is_left_of_a_deployment_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE / "deploy.py"), "--clients", "1", "--keep", str(tmp_path)]
    with subprocess.Popen(
        [*command, "--run-config", "rounds=1000000"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        seen = ""
        for line in process.stdout:
            seen += line
            if "[ROUND 2/" in line:
                break
        assert len(remaining(tmp_path / "flower")) >= 4, seen[-4000:]
        process.kill()
    assert_nothing_left(tmp_path / "flower")


def test_a_superlink_that_is_not_there_is_named(tmp_path: Path) -> None:
    deploy: Any = importlib.import_module("deploy")
    (tmp_path / "config.toml").write_text(
        f'[superlink.here]\naddress = "127.0.0.1:{deploy.free_port()}"\ninsecure = true\n'
    )
    command = [str(Path(sys.executable).parent / "flwr"), "run", str(EXAMPLE), "here"]
    env = {**os.environ, "FLWR_HOME": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert "Connection to the SuperLink is unavailable" in " ".join((done.stdout + done.stderr).split())


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


def test_a_folder_may_be_relative_and_the_reason_stands_in_a_box(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy: Any = importlib.import_module("deploy")
    monkeypatch.chdir(tmp_path)
    made = deploy.Deployment(Path("kept"), 1)
    made.lifeline.cut()
    assert made.credentials == tmp_path / "kept" / "credentials"  # Flower's home is elsewhere
    assert made.environment["FLWR_HOME"] == str(tmp_path / "kept" / "flower")
    assert deploy.last_line("╭─ Error ─────╮\n│ no such key │\n╰─────────────╯\n") == "no such key"

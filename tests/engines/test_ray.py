"""The Ray engine: equal bits on a cluster of two machines, whatever happens to one of them."""

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from propfair.algorithms.base import ALGORITHMS, Algorithm, Cohort, Needs, Personal, State
from propfair.algorithms.fedavg import FedAvg
from propfair.algorithms.propfair import PropFair
from propfair.core.aggregator import Outcome
from propfair.core.client import LocalTraining, Workload
from propfair.core.evaluation import Evaluation
from propfair.core.params import FlatModel
from propfair.core.rounds import Rounds
from propfair.engines.inprocess import InProcess
from propfair.engines.ray.cluster import connected
from propfair.engines.ray.engine import Ray
from propfair.engines.ray.watchdog import processes_of
from propfair.engines.server import Server
from propfair.engines.session import Engine, Event
from propfair.errors import ConfigError, MissingExtraError
from propfair.runs.folder import RunFolder
from propfair.runs.launch import resume, run
from tests.builders import everything, federation_of
from tests.runs.killed import SETTINGS, content, tiny

pytestmark = pytest.mark.timeout(600)  # a busy machine takes a minute to start a worker
ray: Any = pytest.importorskip("ray", reason="needs the extra: pip install 'propfair[ray]'")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A machine with two CPUs, to which tests may add others."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # at Ray's low priority a busy machine would take minutes
        cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        try:
            yield cluster
        finally:
            cluster.shutdown()


@dataclass(frozen=True, kw_only=True)
class Everything(Algorithm):
    """Looks at all there is: losses, updates, and personal models."""

    name = "everything"

    @property
    def needs(self) -> Needs:
        return Needs.LOSS | Needs.GRAM

    @property
    def personal(self) -> Personal:
        return Personal(lam=0.1)

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        assert cohort.gram is not None
        weights = cohort.share * cohort.loss / (1 + cohort.gram.sum(1).abs())
        return weights / weights.sum(), state


def workload(
    algorithm: Algorithm, num_clients: int, loss: Callable[[Tensor, Tensor], Tensor] | None = None
) -> Workload:
    """Labels carry the client's number (label + 3 client), so that a loss can misbehave for one of them."""
    rng = torch.Generator().manual_seed(0)
    sizes = (8 * torch.randint(1, 4, (num_clients,), generator=rng)).tolist()
    owner = torch.repeat_interleave(torch.arange(num_clients), torch.tensor(sizes))
    x = torch.randn(len(owner), 6, generator=rng)
    y = torch.randint(3, (len(owner),), generator=rng) + 3 * owner
    federation = federation_of(x, y, sizes, num_classes=3 * num_clients, validation=everything)
    return Workload(federation, algorithm, LocalTraining(lr=0.1, batch_size=8), seed=1, loss=loss or plain_loss)


def plain_loss(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output, target % 3, reduction="none")


@dataclass(frozen=True)
class Result:
    params: Tensor
    buffers: Tensor
    evaluation: Evaluation
    personal: Evaluation | None
    outcomes: list[Outcome]
    events: list[Event]


def train(engine: Engine, work: Workload, rounds: int = 2, participation: float = 1.0) -> Result:
    torch.manual_seed(0)
    model = FlatModel(nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 3)))
    everyone = range(work.federation.num_clients)
    with engine.start(model, work) as session:
        server = Server(session, Rounds(participation=participation), model.params, model.buffers)
        outcomes = [server.run_round() for _ in range(rounds)]
        evaluation = session.evaluate(server.params, server.buffers, "validation", everyone)
        personal = session.evaluate_personal("validation", everyone) if work.algorithm.personal else None
        return Result(server.params, server.buffers, evaluation, personal, outcomes, list(session.events))


def assert_same(found: Result, expected: Result) -> None:
    assert torch.equal(found.params, expected.params)
    assert torch.equal(found.buffers, expected.buffers)
    assert_same_evaluation(found.evaluation, expected.evaluation)
    for mine, other in zip(found.outcomes, expected.outcomes, strict=True):
        assert torch.equal(mine.weights, other.weights)
        assert mine.diagnostics == other.diagnostics
    if expected.personal is not None:
        assert found.personal is not None
        assert_same_evaluation(found.personal, expected.personal)


def assert_same_evaluation(found: Evaluation, expected: Evaluation) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("algorithm", "num_clients", "participation"),
    [
        pytest.param(PropFair(), 70, 1.0, id="whole blocks"),
        pytest.param(PropFair(placement="step"), 11, 1.0, id="parts of blocks", marks=pytest.mark.slow),
        pytest.param(Everything(), 20, 0.5, id="single updates and memories"),
        pytest.param(Everything(), 20, 1.0, id="a model of every client"),
    ],
)
def test_bits_equal_one_process(cluster: Any, algorithm: Algorithm, num_clients: int, participation: float) -> None:
    work = workload(algorithm, num_clients)
    found = train(Ray(address=cluster.address, workers=2), work, participation=participation)
    assert_same(found, train(InProcess(threads=1), work, participation=participation))
    assert not found.events


@pytest.mark.slow
@pytest.mark.parametrize("name", ["aaggff", "adafed", "drfl", "feddg-ga", "fedmdfg", "scaff-pd", "upgrad", "feddyn"])
def test_new_rules_give_the_bits_of_one_process(cluster: Any, name: str) -> None:
    work = workload(ALGORITHMS.make(name), 9)
    found = train(Ray(address=cluster.address, workers=2), work, participation=0.5)
    assert_same(found, train(InProcess(threads=1), work, participation=0.5))


@pytest.mark.slow
def test_nested_wrappers_and_a_server_optimiser_give_the_bits_of_one_process(cluster: Any, tmp_path: Path) -> None:
    settings = ["algorithm=fednova", "algorithm.over=scaffold", "algorithm.options.over=propfair"]
    settings += ["server.optimizer=yogi", "server.participation=0.5"]
    run(tiny(*settings, "engine=inprocess", "engine.threads=1", rounds=3), tmp_path / "here", name="tiny")
    there = ["engine=ray", "engine.workers=2", f'engine.address="{cluster.address}"']
    run(tiny(*settings, *there, rounds=3), tmp_path / "there", name="tiny")
    assert content(tmp_path / "there") == content(tmp_path / "here")


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["propfair", "afl", "fedmgda+"])
def test_every_task_gives_the_bits_of_one_process(cluster: Any, rule: str) -> None:
    from tests.tasks.scenes import SCENES
    from tests.tasks.test_tasks import RULES, train

    algorithm = ALGORITHMS.make(rule, RULES[rule])
    for name, scene in SCENES.items():
        alone = train(scene, algorithm, engine=InProcess(threads=1))
        apart = train(scene, algorithm, engine=Ray(address=cluster.address, workers=2))
        for ours, theirs in zip(apart.model.parameters(), alone.model.parameters(), strict=True):
            assert torch.equal(ours, theirs), name


@pytest.mark.slow
def test_a_sweep_on_the_cluster_finds_what_one_process_finds(cluster: Any, tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="needs the extra: pip install 'propfair[sweep]'")
    from propfair.tuning.search import SweepFile, make_sweep
    from propfair.tuning.studies import Home, Studies
    from propfair.tuning.sweep import TrialRunner
    from propfair.tuning.sweep_ray import run_sweep_on_ray

    content = {
        "name": "tiny", "criterion": "worst10", "seeds": [0], "grid": {"local": {"lr": [0.01, 0.5]}},
        "algorithms": {"propfair": {}},
    }  # fmt: skip
    run = ["data=synthetic", "data.num_clients=3", "model=logistic", "schedule.rounds=2"]
    plan = make_sweep(SweepFile.model_validate(content), run)
    unknown = make_sweep(SweepFile.model_validate({**content, "criterion": "worst10 of f1"}), run)
    with pytest.raises(ConfigError, match="has no value on the validation split"):
        run_sweep_on_ray(unknown, Home.at(tmp_path / "unknown"), address=cluster.address)
    tables: list[Any] = []
    found = run_sweep_on_ray(
        plan,
        Home.at(tmp_path / "ray"),
        address=cluster.address,
        workers=2,
        show=lambda now: tables.append(now.tallies()),
    ).tested()
    alone = TrialRunner(plan, Home.at(tmp_path / "alone"))
    alone.work()
    (expected,) = Studies(plan, alone.home).tested()
    assert found[0].winner == expected.winner
    assert found[0].group.values().tolist() == expected.group.values().tolist()
    assert tables[-1][0].ended


class KilledNode:
    """Clients on the machine that is to die say so and stay there; the others wait until there is one."""

    def __init__(self, node: str, marker: Path) -> None:
        self.node, self.marker = node, marker

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        if output.requires_grad and ray.get_runtime_context().get_node_id() == self.node:
            self.marker.touch()
            time.sleep(600)
        while output.requires_grad and not self.marker.exists():
            time.sleep(0.05)
        return plain_loss(output, target)


def test_a_machine_that_dies_in_a_round_changes_nothing(cluster: Any, tmp_path: Path) -> None:
    node = cluster.add_node(num_cpus=1)
    work = workload(Everything(), 12)
    marker = tmp_path / "running"
    over = threading.Event()

    def kill() -> None:
        while not (marker.exists() or over.wait(0.05)):
            pass
        cluster.remove_node(node, allow_graceful=False)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        engine = Ray(address=cluster.address, workers=3)
        found = train(engine, replace(work, loss=KilledNode(node.node_id, marker)), rounds=1)
    finally:
        over.set()
        killer.join()

    assert_same(found, train(InProcess(threads=1), work, rounds=1))
    assert {event.kind for event in found.events} == {"rerun"}
    assert "died" in found.events[0].detail


class Hanging:
    """Hangs for one client: the first time only, or always."""

    def __init__(self, client: int, marker: Path | None) -> None:
        self.client, self.marker = client, marker

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        hangs = self.marker is None or not self.marker.exists()
        if hangs and output.requires_grad and int(target[0]) // 3 == self.client:
            if self.marker is not None:
                self.marker.touch()
            time.sleep(600)
        return plain_loss(output, target)


@pytest.mark.slow
def test_a_client_that_hangs_is_run_again(cluster: Any, tmp_path: Path) -> None:
    work = workload(FedAvg(), 36)
    hanging = replace(work, loss=Hanging(13, tmp_path / "hung"))
    engine = Ray(address=cluster.address, workers=1, timeout=1.0, on_hang="retry")
    found = train(engine, hanging, rounds=1)
    assert_same(found, train(InProcess(threads=1), work, rounds=1))
    assert found.events[0].clients == tuple(range(8, 16))  # its block, to find it
    assert found.events[0].kind == "rerun"


def test_a_client_that_hangs_is_dropped(cluster: Any) -> None:
    work = workload(FedAvg(), 6, Hanging(3, None))
    found = train(Ray(address=cluster.address, workers=2, timeout=5.0, on_hang="drop"), work, rounds=1)
    assert found.outcomes[0].dropped == (3,)
    assert float(found.outcomes[0].weights.sum()) == pytest.approx(1)
    assert [(event.kind, event.clients) for event in found.events] == [("lost", (3,))]


def broken_loss(output: Tensor, target: Tensor) -> Tensor:
    raise KeyError("no such label")


def test_an_error_in_the_program_comes_out_as_it_is(cluster: Any) -> None:
    with pytest.raises(KeyError, match="no such label"):
        train(Ray(address=cluster.address, workers=1), workload(FedAvg(), 2, broken_loss), rounds=1)


@pytest.mark.parametrize("before", [signal.SIG_DFL, lambda number, frame: None], ids=["default", "own"])
def test_the_handler_of_sigterm_stays(cluster: Any, before: Any) -> None:
    at_first = signal.signal(signal.SIGTERM, before)
    try:
        with connected(cluster.address, None):
            if callable(before):
                assert signal.getsignal(signal.SIGTERM) == before
        assert signal.getsignal(signal.SIGTERM) == before
    finally:
        signal.signal(signal.SIGTERM, at_first)


def test_wrong_options_are_refused() -> None:
    for options, message in (
        ({"workers": -1}, "workers must be at least 0"),
        ({"cpus": 0.0}, "must reserve something"),
        ({"on_hang": "drop"}, "needs a timeout"),
    ):
        with pytest.raises(ConfigError, match=message):
            Ray(**options)
    with pytest.raises(ConfigError, match="needs GPUs for the workers"):
        Ray().start(FlatModel(nn.Linear(1, 1)), replace(workload(FedAvg(), 2), device="cuda"))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://somewhere"])
def test_a_cluster_that_is_not_there_is_named_at_once(address: str) -> None:
    with pytest.raises(ConfigError, match=rf"no Ray cluster at address='{address}'.*`ray start --head`"):
        train(Ray(address=address), workload(FedAvg(), 2))


def test_a_missing_or_old_ray_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "__version__", "2.9.3")
    with pytest.raises(ConfigError, match=r"at least 2\.40; found 2\.9\.3"):
        train(Ray(), workload(FedAvg(), 2))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'propfair\[ray\]'"):
        train(Ray(), workload(FedAvg(), 2))


INTERRUPTED = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with SIGINT ignored
from tests.engines.test_ray import FedAvg, Ray, train, workload
import ray, propfair.engines.server
run_round = propfair.engines.server.Server.run_round
def told(server):
    if server.round == 1:
        print(ray._private.worker.global_worker.node.get_session_dir_path(), flush=True)
    return run_round(server)
propfair.engines.server.Server.run_round = told
train(Ray(workers=1), workload(FedAvg(), 64), rounds=1_000_000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_nothing_is_left_after_an_interrupt(how: signal.Signals) -> None:
    shared = set(Path("/dev/shm").glob("plasma*"))
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = processes_of(process.pid)
        assert found
        assert addresses({process.pid, *found}) <= {"127.0.0.1", "::1"}
        process.send_signal(how)
        assert process.wait(120) != 0
    assert is_gone(process.pid, 15)
    assert set(Path("/dev/shm").glob("plasma*")) <= shared


@pytest.mark.slow
def test_sigterm_in_a_round_saves_the_run_and_resume_ends_with_the_same_bits(cluster: Any, tmp_path: Path) -> None:
    config = tiny("algorithm=ditto", rounds=60)
    folder = tmp_path / "stopped"
    on_ray = ["engine=ray", f"engine.address={cluster.address}", "engine.workers=1"]
    settings = [*SETTINGS, "algorithm=ditto", "schedule.rounds=60", *on_ray]
    with subprocess.Popen(
        [sys.executable, "-m", "propfair", "run", *settings, "--out", str(folder)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        while process.poll() is None and not list(folder.glob("checkpoints/*")):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGINT, said
    assert RunFolder.open(folder).status["state"] == "interrupted"
    assert resume(folder).state == "finished"
    run(config, tmp_path / "whole", name="stopped")
    assert content(folder) == content(tmp_path / "whole")


STARTING = """
import ray
from propfair.engines.ray.cluster import connected
from propfair.engines.ray.watchdog import processes_of
print("starting", flush=True)
with connected("", 1):
    raise AssertionError("too late")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("seconds", [0.5, 2.0])
def test_sigterm_while_ray_starts_ends_the_process(seconds: float) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTING], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "starting\n"
        time.sleep(seconds)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
    assert is_gone(process.pid, 15)


def is_gone(owner: int, seconds: float) -> bool:
    """Whether nothing is left of the Ray of a process that has ended."""
    deadline = time.monotonic() + seconds
    while processes_of(owner) and time.monotonic() < deadline:
        time.sleep(0.2)
    return not processes_of(owner)


def addresses(processes: set[int]) -> set[str]:
    """Where some processes listen for connections over the network."""
    sockets = set()
    for process in processes:
        for file in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):
                sockets.add(str(file.readlink()))
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:  # it listens
                words = bytes.fromhex(fields[1].partition(":")[0])
                packed = b"".join(words[start : start + 4][::-1] for start in range(0, len(words), 4))
                found.add(socket.inet_ntop(family, packed).removeprefix("::ffff:"))
    return found

"""`python -m benchmarks.scale`: Ray with one and two workers against one process; the costs behind docs/scale.md."""

import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from benchmarks.workloads import Workload as Load
from benchmarks.workloads import find
from propfair.algorithms.fedavg import FedAvg
from propfair.algorithms.term import TERM
from propfair.client import LocalTraining, Workload
from propfair.data import ArrayExamples
from propfair.engines.base import Engine
from propfair.engines.inprocess import InProcess
from propfair.engines.ray import Ray
from propfair.engines.ray_pool import connected
from propfair.federation import Federation, Ragged
from propfair.params import FlatModel
from propfair.server import Aggregator, Rounds, Server

TURNS = 7
ENGINES: dict[str, Engine] = {
    "one process": InProcess(threads=1), "Ray, 1 worker": Ray(workers=1), "Ray, 2 workers": Ray(workers=2),
}  # fmt: skip


def work_of(load: Load) -> Workload:
    sizes = load.client_sizes()
    train = Ragged.of(list(torch.split(torch.arange(int(sizes.sum())), sizes.tolist())))
    nothing = Ragged.of([torch.empty(0)] * load.num_clients)
    names = tuple(map(str, range(load.num_clients)))
    examples = ArrayExamples(*load.data(), num_classes=load.num_classes)
    federation = Federation(examples, names, train, nothing, nothing)
    return Workload(federation, FedAvg(), LocalTraining(lr=load.lr, batch_size=load.batch_size))


def seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def processor_seconds() -> float:
    """Of this process and all that it started, Ray's among them: a number that other programs do not change."""
    parents, used = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            number = int(path.parent.name)
            parents[number], used[number] = int(fields[1]), int(fields[11]) + int(fields[12])
    ours = {os.getpid()}
    while more := {number for number, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(used.get(number, 0) for number in ours) / os.sysconf("SC_CLK_TCK")


def compare(load: Load) -> None:
    """Rounds of every engine in turns, so that a busy machine slows all of them; and whether the bits are equal."""
    work = work_of(load)
    with contextlib.ExitStack() as stack:
        stack.enter_context(connected("", 3))  # one Ray for all of them
        servers: dict[str, Server] = {}
        for name, engine in ENGINES.items():
            model = FlatModel(load.build_model())
            start = seconds(lambda: servers.update({name: begin(engine, model, work, load, stack)}))  # noqa: B023
            servers[name].run_round()  # to warm up
            print(f"{name}: {start:.1f} s to start", flush=True)
        taken: dict[str, list[float]] = {name: [] for name in servers}
        used = dict.fromkeys(servers, 0.0)
        for _ in range(TURNS):
            for name, server in servers.items():
                before = processor_seconds()
                taken[name].append(seconds(server.run_round))
                used[name] += processor_seconds() - before
        base = statistics.median(taken["one process"])
        params = servers["one process"].params
        print(
            f"\n{load.title}: {len(params):,} parameters, {load.cohort} clients a round; load {os.getloadavg()[0]:.1f}"
        )
        print("| engine | seconds a round | speed | processor seconds | equal bits |\n|---|---|---|---|---|")
        for name, values in taken.items():
            middle = statistics.median(values)
            ratio = statistics.median(b / v for b, v in zip(taken["one process"], values, strict=True))
            same = torch.equal(servers[name].params, params)
            print(f"| {name} | {middle:.3f} | {ratio:.2f} | {used[name] / TURNS:.3f} | {'yes' if same else 'NO'} |")
        print(f"a client: {1000 * base / load.cohort:.2f} ms\n", flush=True)


def begin(engine: Engine, model: FlatModel, work: Workload, load: Load, stack: contextlib.ExitStack) -> Server:
    session = stack.enter_context(engine.start(model, work))
    return Server(session, Rounds(participation=load.cohort), model.params, model.buffers)


def server_costs() -> None:
    """What one machine does for a round beside the clients: planning it, and adding up blocks."""
    params = torch.zeros(1_206_590)
    update = torch.ones_like(params)
    adding = statistics.median(seconds(lambda: params.add_(update)) for _ in range(50))
    print(f"adding one block of {len(params):,} parameters: {1000 * adding:.2f} ms")
    for n in (1_000, 10_000, 1_000_000):
        train = Ragged(torch.empty(0, dtype=torch.int64), torch.arange(0, 30 * n + 1, 30))
        nothing = Ragged(torch.empty(0, dtype=torch.int64), torch.zeros(n + 1, dtype=torch.int64))
        examples = ArrayExamples(torch.empty(0, 1), torch.empty(0, dtype=torch.int64), num_classes=2)
        federation = Federation(examples, tuple(map(str, range(n))), train, nothing, nothing)
        cohort = max(100, n // 100)
        for algorithm in (FedAvg(), TERM()):
            model = FlatModel(nn.Linear(1, 1))
            work = Workload(federation, algorithm, LocalTraining())
            server = Aggregator(work, Rounds(participation=cohort), model.params, model.buffers)
            planning = statistics.median(seconds(lambda: server.plan(None)) for _ in range(5))  # noqa: B023
            print(f"planning {cohort:,} of {n:,} clients, {algorithm.name}: {1000 * planning:.1f} ms")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for workload in sys.argv[1:] or ["W2", "W3-mlp"]:
        compare(find(workload))
    server_costs()

"""`python -m benchmarks.scale`: Ray with one and two workers against one process, and what follows for many clients.

Writes its tables into docs/scale.md; `--dry-run` only prints them.
"""

import argparse
import contextlib
import datetime
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from benchmarks import machine
from benchmarks.harness import ROOT
from benchmarks.workloads import Workload as Load
from benchmarks.workloads import find
from propfair.algorithms.fedavg import FedAvg
from propfair.algorithms.term import TERM
from propfair.core.aggregator import Aggregator
from propfair.core.client import LocalTraining, Workload
from propfair.core.messages import BLOCK
from propfair.core.params import FlatModel
from propfair.core.rounds import Rounds
from propfair.data import ArrayExamples
from propfair.engines.inprocess import InProcess
from propfair.engines.ray.cluster import connected
from propfair.engines.ray.engine import TASKS_PER_WORKER, Ray
from propfair.engines.server import Server
from propfair.engines.session import Engine
from propfair.federation.federation import Federation, Ragged

BEGIN, END = "<!-- results: written by python -m benchmarks.scale -->", "<!-- end of results -->"
POPULATIONS = (1_000, 10_000, 1_000_000)
WORKERS = (2, 100, 1000)
BYTES_PER_SECOND = 1.25e9  # of the driver's network: 10 Gbit/s
ENGINES: dict[str, Engine] = {
    "one process": InProcess(threads=1), "Ray, 1 worker": Ray(workers=1), "Ray, 2 workers": Ray(workers=2),
}  # fmt: skip


@dataclass(frozen=True)
class Costs:
    """Of one workload, measured."""

    load: Load
    num_params: int
    starts: dict[str, float]  # seconds until the first round can begin, by engine
    rounds: dict[str, list[float]]  # seconds
    processor: dict[str, float]  # seconds a round, of all processes
    equal: dict[str, bool]  # bits, to those of one process
    bytes_per_client: float  # of training data

    def seconds(self, engine: str) -> float:
        return statistics.median(self.rounds[engine])

    @property
    def worker_seconds(self) -> float:
        """That a worker needs for a client, with all that Ray adds."""
        return 2 * self.seconds("Ray, 2 workers") / self.load.cohort


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


def measure(load: Load, turns: int) -> Costs:
    """Rounds of every engine in turns, so that a busy machine slows all of them; and whether the bits are equal."""
    work = work_of(load)
    with contextlib.ExitStack() as stack:
        stack.enter_context(connected("", 3))  # one Ray for all of them
        servers: dict[str, Server] = {}
        starts: dict[str, float] = {}
        for name, engine in ENGINES.items():
            model = FlatModel(load.build_model())
            starts[name] = seconds(lambda: servers.update({name: begin(engine, model, work, load, stack)}))  # noqa: B023
            servers[name].run_round()  # to warm up
            print(f"{load.name}, {name}: {starts[name]:.1f} s to start", flush=True)
        taken: dict[str, list[float]] = {name: [] for name in servers}
        used = dict.fromkeys(servers, 0.0)
        for _ in range(turns):
            for name, server in servers.items():
                before = processor_seconds()
                taken[name].append(seconds(server.run_round))
                used[name] += processor_seconds() - before
        params = servers["one process"].params
        tensors = work.federation.examples.tensors().values()
        return Costs(
            load, len(params), starts, taken, {name: value / turns for name, value in used.items()},
            {name: torch.equal(server.params, params) for name, server in servers.items()},
            sum(tensor.nbytes for tensor in tensors) / load.num_clients,
        )  # fmt: skip


def begin(engine: Engine, model: FlatModel, work: Workload, load: Load, stack: contextlib.ExitStack) -> Server:
    session = stack.enter_context(engine.start(model, work))
    return Server(session, Rounds(participation=load.cohort), model.params, model.buffers)


def planning_seconds(num_clients: int, cohort: int) -> float:
    """What the driver does before a round, for an algorithm that looks at losses."""
    model, sizes = FlatModel(nn.Linear(1, 1)), torch.full((num_clients,), 30)
    rounds = Rounds(participation=cohort)
    server = Aggregator(TERM(), sizes, LocalTraining(), rounds, 0, model.params, model.buffers)
    return statistics.median(seconds(lambda: server.plan(None)) for _ in range(3))


def adding_seconds(num_params: int) -> float:
    """To add one block to the sum."""
    total, update = torch.zeros(num_params), torch.ones(num_params)
    return statistics.median(seconds(lambda: total.add_(update)) for _ in range(50))


def scaling(costs: Costs) -> str:
    load = costs.load
    rows = [
        "| engine | seconds a round | speed | processor seconds a round | start | equal bits |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for name, values in costs.rounds.items():
        speed = statistics.median(b / v for b, v in zip(costs.rounds["one process"], values, strict=True))
        rows.append(
            f"| {name} | {costs.seconds(name):.3f} ({min(values):.3f}-{max(values):.3f}) | {speed:.2f} | "
            f"{costs.processor[name]:.3f} | {costs.starts[name]:.1f} s | {'yes' if costs.equal[name] else 'NO'} |"
        )
    return f"**{load.name}**: {load.title}; {costs.num_params:,} parameters.\n\n" + "\n".join(rows)


def estimate(costs: Costs, planning: dict[tuple[int, int], float]) -> str:
    """Per-round costs, multiplied out."""
    adding, size = adding_seconds(costs.num_params), 4 * costs.num_params
    head = " | ".join(f"{workers:,} workers" for workers in WORKERS)
    rows = [
        f"| clients | a round | planning | {head} | data |",
        "|---:|---:|---:|" + "---:|" * (len(WORKERS) + 1),
    ]
    for (clients, cohort), plan in planning.items():
        totals = []
        for workers in WORKERS:
            blocks = -(-cohort // BLOCK)
            sent = blocks if blocks >= TASKS_PER_WORKER * workers else cohort
            work = -(-cohort // workers) * costs.worker_seconds
            totals.append(duration(plan + work + sent * (adding + size / BYTES_PER_SECOND)))
        rows.append(
            f"| {clients:,} | {cohort:,} | {duration(plan)} | {' | '.join(totals)} | "
            f"{clients * costs.bytes_per_client / 2**30:,.2f} GiB |"
        )
    return (
        f"**{costs.load.name}**, from {1000 * costs.worker_seconds:.2f} ms of a worker for a client, "
        f"{1000 * adding:.3f} ms to add a sum and {size / 2**20:.2f} MiB for a model:\n\n" + "\n".join(rows)
    )


def duration(value: float) -> str:
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if value >= 2 * length:
            return f"{value / length:,.1f} {unit}"
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.1f} ms"


def markdown(found: list[Costs]) -> str:
    cohorts = [(n, cohort) for n in POPULATIONS for cohort in sorted({max(100, n // 100), n})]
    planning = {pair: planning_seconds(*pair) for pair in cohorts}
    described = ", ".join(
        f"{name} {value}" for name, value in {**machine.describe(), **machine.versions(["ray"])}.items()
    )
    turns = len(next(iter(found[0].rounds.values())))
    return "\n\n".join(
        [
            "### Measured",
            f"On {datetime.date.today():%Y-%m-%d}, {described}; load at the end {os.getloadavg()[0]:.1f}. "
            f"Engines took turns, {turns} rounds each: medians, and in brackets the fastest and the slowest round. "
            "Speed is the median of one process against the engine in the same turn.",
            *map(scaling, found),
            "### Estimated",
            *(estimate(costs, planning) for costs in found),
        ]
    )


def write_page(text: str, page: Path) -> None:
    """Put the tables between the two marks of the page."""
    before, begin_, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin_ or not end:
        raise ValueError(f"{page} must have the lines {BEGIN!r} and {END!r}")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("workloads", nargs="*", default=["W2", "W3-mlp"], help="as in docs/performance.md")
    parser.add_argument("--turns", type=int, default=5, help="rounds of each engine")
    parser.add_argument("--dry-run", action="store_true", help="print the tables, write nothing")
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("RAY_worker_niceness", "0")  # else a busy machine would slow Ray's workers most
    text = markdown([measure(find(name), given.turns) for name in given.workloads])
    print(text)
    if not given.dry_run:
        write_page(text, ROOT / "docs" / "scale.md")


if __name__ == "__main__":
    main()

"""Where the time of a local step goes: `python -m benchmarks.steps`.

One client is run as propfair runs it, in one process on one thread; of W1-loss, the pass before training that measures
the loss of the received model on as many examples as a step has, which is float32 in every precision. Beside the
measured time stands the time that the products would take at the speed of one large matrix product, which no rewriting
of the rest can beat.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

import propfair
from benchmarks import pages
from benchmarks.contestants.propfair import federation
from benchmarks.harness import ROOT
from benchmarks.workloads import find
from propfair.algorithms.base import Order
from propfair.core.client import Workload, run_client
from propfair.core.evaluation import chunks
from propfair.core.evaluation import measure as losses
from propfair.core.params import FlatModel
from propfair.core.precision import Precision
from propfair.engines.allocator import keep_freed_memory
from propfair.runs.training import make_lean

PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- steps: written by python -m benchmarks.steps -->", "<!-- end of steps -->"
TYPES: dict[Precision, torch.dtype] = {"float32": torch.float32, "bf16": torch.bfloat16}
KINDS = {  # of torch's operations, as its profiler calls them
    "products": (
        "mkldnn_convolution", "convolution_backward", "mm", "bmm", "addmm", "mkldnn_rnn_layer",
        "mkldnn_rnn_layer_backward",
    ),
    "copies": ("copy_",),
    "normalising": ("native_group_norm", "native_group_norm_backward"),
    "pools": (
        "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "clamp_min", "clamp_min_", "threshold_backward",
    ),
    "sums": ("add", "add_", "_foreach_add_"),
}  # fmt: skip


def _recurrent(x: Sequence[int], of_inputs: Sequence[int], of_states: Sequence[int], *_: object, **__: object) -> int:
    """Operations of a recurrent layer: inputs [T, B, in], weights [gates, in] and [gates, hidden]."""
    return 2 * math.prod(x[:2]) * (math.prod(of_inputs) + math.prod(of_states))


RECURRENT = {  # which torch's counter does not know; derivatives by inputs and by weights take as much each
    torch.ops.aten.mkldnn_rnn_layer: _recurrent,
    torch.ops.aten.mkldnn_rnn_layer_backward: lambda *shapes, **_: 2 * _recurrent(*shapes),
}


@dataclass(frozen=True)
class Step:
    """Milliseconds of a local step.

    Attributes:
        step: the whole.
        at_best: what its products would take at the speed of one large matrix product.
        products: convolutions, matrix products, recurrent layers.
        copies: casts to bf16 and back, and changes of layout.
        normalising: GroupNorm.
        pools: max-pools and ReLU.
        sums: SGD, residual connections, gradients that meet.
    """

    step: float
    at_best: float
    products: float
    copies: float
    normalising: float
    pools: float
    sums: float

    @property
    def rest(self) -> float:
        """Python, torch's dispatcher and autograd, memory, whatever has no name above; the profiler's own time too."""
        return self.step - self.products - self.copies - self.normalising - self.pools - self.sums


def measure(workload: str, precision: Precision, repeats: int) -> Step:
    """One workload in one precision; medians."""
    spec = find(workload)
    local = propfair.LocalTraining(lr=spec.lr, batch_size=spec.batch_size, precision=precision)
    work = Workload(federation(spec), propfair.algorithm("fedavg"), local)
    model = FlatModel(make_lean(spec.build_model(), work).module)
    received, buffers = model.params.clone(), model.buffers
    steps = local.num_steps(0, len(work.federation.train[0]))

    def client() -> None:
        if spec.tilt:
            losses(model, work.federation.examples, work.task, work.loss, chunks(work.federation, "train", [0]))
        else:
            run_client(model, work, 1, Order(1.0, {}), 0, received, buffers, None)

    client()
    seconds = _median(client, repeats) / steps
    with FlopCounterMode(display=False, custom_mapping=RECURRENT) as counter:
        client()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        began = time.perf_counter()  # as the profiler counts
        for _ in range(repeats):
            client()
        profiled = time.perf_counter() - began
    own = {event.key: event.self_cpu_time_total / 1e6 for event in profiler.key_averages()}
    kinds = {kind: sum(own.get(f"aten::{name}", 0.0) for name in names) for kind, names in KINDS.items()}
    return Step(
        1e3 * seconds, 1e3 * counter.get_total_flops() / steps / peak(TYPES[precision]),
        **{kind: 1e3 * seconds * spent / profiled for kind, spent in kinds.items()},
    )  # fmt: skip


def peak(dtype: torch.dtype, size: int = 1024) -> float:
    """Operations per second of one large matrix product."""
    a, b = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
    return 2 * size**3 / min(_seconds(lambda: torch.mm(a, b)) for _ in range(10))


def _median(function: Callable[[], None], repeats: int) -> float:
    return sorted(_seconds(function) for _ in range(repeats))[repeats // 2]


def _seconds(function: Callable[[], object]) -> float:
    """Processor time of this thread, so that a busy machine counts little."""
    began = time.thread_time()
    function()
    return time.thread_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps", description=__doc__)
    parser.add_argument("--workloads", default="W1,W1-loss,W2,W4,W5", help="comma-separated")
    parser.add_argument("--repeats", type=int, default=5, help="clients that are run")
    parser.add_argument("--dry-run", action="store_true", help="print the table, write nothing to docs")
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    columns = [field.name.replace("_", " ") for field in fields(Step)]
    lines = [
        "Milliseconds of a local step on one core:", "",
        f"| work | precision | {' | '.join(columns)} | rest |", f"|---|---|{'---:|' * (len(columns) + 1)}",
    ]  # fmt: skip
    for workload in given.workloads.split(","):
        precisions: Iterable[Precision] = ("float32",) if find(workload).tilt else TYPES
        for precision in precisions:
            found = measure(workload, precision, given.repeats)
            values = [*(getattr(found, field.name) for field in fields(Step)), found.rest]
            lines.append(f"| {workload} | {precision} | {' | '.join(f'{value:.1f}' for value in values)} |")
            print(lines[-1], flush=True)
    if not given.dry_run:
        pages.put(PAGE, BEGIN, END, "\n".join(lines))


if __name__ == "__main__":
    main()

"""propfair through its public call."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import propfair
from benchmarks.workloads import After, Workload
from propfair.core.precision import PRECISIONS
from propfair.federation.ragged import Ragged
from propfair.runs.progress import Progress
from propfair.seeds import generator

FOR_EVER = 10**9


def compete(workload: Workload, after_round: After, option: str = "") -> None:
    """Train through `propfair.train`. The option names an engine or a precision; none: auto, in float32."""
    sizes = workload.client_sizes().numpy()

    def watch(progress: Progress) -> None:
        after_round(int(sizes[cohort(workload, progress.round)].sum()))

    precision: Any = option if option in PRECISIONS else "float32"
    named: dict[str, Any] = {} if option in ("", precision) else {"engine": option}
    propfair.train(
        workload.build_model(),
        federation(workload),
        propfair.algorithm("term", alpha=workload.tilt) if workload.tilt else "fedavg",
        rounds=FOR_EVER,
        local=propfair.LocalTraining(lr=workload.lr, batch_size=workload.batch_size, precision=precision),
        participation=workload.cohort if workload.cohort < workload.num_clients else 1.0,
        eval_every=FOR_EVER,
        after_round=watch,
        **named,
    )


def federation(workload: Workload) -> propfair.Federation:
    """The clients, with training data only."""
    x, y = workload.data()
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), workload.client_sizes().cumsum(0)])
    none = Ragged(torch.empty(0, dtype=torch.int64), torch.zeros_like(offsets))
    names = tuple(map(str, range(workload.num_clients)))
    examples = propfair.ArrayExamples(x, y, num_classes=workload.num_classes)
    return propfair.Federation(examples, names, Ragged(torch.arange(len(y)), offsets), none, none)


def cohort(workload: Workload, round_: int) -> NDArray[np.int64]:
    """The clients that seed 0 samples for a round."""
    if workload.cohort == workload.num_clients:
        return np.arange(workload.num_clients)
    everyone = torch.randperm(workload.num_clients, generator=generator(0, "cohort", round_))
    return everyone.numpy()[: workload.cohort]

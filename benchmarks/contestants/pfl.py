"""pfl-research with its own FedAvg: two processes joined by torch.distributed, as its benchmarks do it."""

import os
import socket
import subprocess
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.workloads import After, Workload, find

PROCESSES = 2
RANK, ADDRESSES = "PFL_WORKER_RANK", "PFL_WORKER_ADDRESSES"


class Net(nn.Module):
    """The network with the two methods that pfl asks for."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Of a batch."""
        return functional.cross_entropy(self.network(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """None are asked for."""
        return {}


def compete(workload: Workload, after_round: After) -> None:
    """One run of a huge number of iterations; the second process does the same without being watched."""
    if workload.tilt:
        raise NotImplementedError("pfl has no algorithm that measures the loss of the received model first")
    torch.set_num_threads(1)
    if RANK not in os.environ:
        os.environ[ADDRESSES] = ",".join(f"127.0.0.1:{_free_port()}" for _ in range(PROCESSES))
        for rank in range(1, PROCESSES):
            command = [sys.executable, "-m", "benchmarks.contestants.pfl", workload.spec]
            subprocess.Popen(command, env={**os.environ, RANK: str(rank)})
        os.environ[RANK] = "0"
    # pfl joins the other processes when it is imported, so that their addresses must be known before
    from pfl.aggregate.base import get_num_datapoints_weight_name
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.common_types import Population
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    class Tell(TrainingProcessCallback):  # type: ignore[misc]
        def after_central_iteration(
            self, aggregate_metrics: Any, model: Any, *, central_iteration: int
        ) -> tuple[bool, Any]:  # fmt: skip
            per_client = aggregate_metrics[get_num_datapoints_weight_name(Population.TRAIN)]
            after_round(int(per_client.weighted_value))
            return False, Metrics()

    x, y = workload.data()
    sizes = workload.client_sizes()
    ends = sizes.cumsum(0).tolist()

    def examples(client: int) -> Any:
        order = ends[client] - 1 - torch.randperm(int(sizes[client]))
        return Dataset([x[order], y[order]], user_id=str(client))

    clients = FederatedDataset(
        examples,
        get_user_sampler("minimize_reuse", list(range(workload.num_clients))),
        dict(enumerate(sizes.tolist())),
    )
    net = Net(workload.build_model())
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    for_ever = 10**9
    FederatedAveraging().run(
        NNAlgorithmParams(for_ever, for_ever, workload.cohort, None),
        SimulatedBackend(clients, clients, [WeightByDatapoints()]),
        model,
        NNTrainHyperParams(local_batch_size=workload.batch_size, local_num_epochs=1, local_learning_rate=workload.lr),
        callbacks=[Tell()],
        send_metrics_to_platform=False,
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    compete(find(sys.argv[1]), lambda _: None)

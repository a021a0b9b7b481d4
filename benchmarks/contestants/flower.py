"""Flower's simulation with its own FedAvg: two Ray actors with one core each, models kept between messages."""

import logging
from collections.abc import Iterable

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.workloads import After, Workload

ACTORS = 2


def compete(workload: Workload, after_round: After) -> None:
    """One run of a huge number of rounds."""
    if workload.tilt:
        raise NotImplementedError("Flower has no algorithm that measures the loss of the received model first")
    logging.getLogger("flwr").setLevel(logging.ERROR)

    class Counting(FedAvg):
        def aggregate_train(
            self, server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            answers = list(replies)
            aggregated = super().aggregate_train(server_round, answers)
            after_round(sum(_num_examples(answer) for answer in answers))
            return aggregated

    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:  # noqa: ARG001
        strategy = Counting(
            fraction_train=workload.cohort / workload.num_clients,
            fraction_evaluate=0.0,
            min_train_nodes=workload.cohort,
            min_available_nodes=workload.num_clients,
        )
        strategy.start(grid, ArrayRecord(workload.build_model().state_dict()), num_rounds=10**9)

    client = ClientApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        return _train(workload, message, int(context.node_config["partition-id"]))

    run_simulation(
        server,
        client,
        num_supernodes=workload.num_clients,
        backend_config={
            "init_args": {"num_cpus": ACTORS, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


def _num_examples(answer: Message) -> int:
    found = answer.content.metric_records["metrics"]["num-examples"]
    assert isinstance(found, int)
    return found


_worlds: dict[str, tuple[nn.Module, Tensor, Tensor, list[int]]] = {}


def _train(workload: Workload, message: Message, client: int) -> Message:
    if workload.name not in _worlds:  # once in each actor
        torch.set_num_threads(1)
        _worlds[workload.name] = (
            workload.build_model(), *workload.data(), [0, *workload.client_sizes().cumsum(0).tolist()],
        )  # fmt: skip
    model, x, y, offsets = _worlds[workload.name]
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=workload.lr)
    order = offsets[client] + torch.randperm(offsets[client + 1] - offsets[client])
    for batch in torch.split(order, workload.batch_size):
        optimizer.zero_grad()
        functional.cross_entropy(model(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    content = RecordDict(
        {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(order)})}
    )
    return Message(content=content, reply_to=message)

"""The bare loop: what one writes by hand, in its better form: two processes with one thread each, and no framework."""

from multiprocessing.connection import Connection

import torch
from torch import Tensor, multiprocessing, nn
from torch.nn import functional

from benchmarks.workloads import After, Workload

PROCESSES = 2


def compete(workload: Workload, after_round: After) -> None:
    """Federated averaging for ever."""
    x, y = workload.data()
    sizes = workload.client_sizes()
    model = workload.build_model()
    params = [_shared(p.detach().clone()) for p in model.parameters()]
    sums = [[_shared(torch.zeros_like(p)) for p in params] for _ in range(PROCESSES)]
    spawn = multiprocessing.get_context("spawn")
    pipes = []
    for own in sums:
        here, there = spawn.Pipe()
        spawn.Process(target=_worker, args=(workload, _shared(x), _shared(y), params, own, there), daemon=True).start()
        pipes.append(here)

    def on_all(task: str, clients: list[int], weights: Tensor) -> Tensor:
        for rank, pipe in enumerate(pipes):
            pipe.send((task, clients[rank::PROCESSES], weights[rank::PROCESSES].tolist()))
        answers = torch.empty(len(clients))
        for rank, pipe in enumerate(pipes):
            answers[rank::PROCESSES] = torch.tensor(pipe.recv())
        return answers

    rng = torch.Generator().manual_seed(0)
    while True:
        clients = torch.randperm(workload.num_clients, generator=rng)[: workload.cohort].tolist()
        weights = sizes[clients] / sizes[clients].sum()
        if workload.tilt:
            losses = on_all("measure", clients, weights)
            weights = torch.softmax(weights.log() + workload.tilt * losses, 0)
        on_all("train", clients, weights)
        for param, *parts in zip(params, *sums, strict=True):
            for part in parts:
                param += part
        after_round(int(sizes[clients].sum()))


def _shared(tensor: Tensor) -> Tensor:
    moved: Tensor = tensor.share_memory_()  # type: ignore[no-untyped-call]
    return moved


def _worker(
    workload: Workload, x: Tensor, y: Tensor, params: list[Tensor], sums: list[Tensor],
    pipe: Connection,
) -> None:  # fmt: skip
    torch.set_num_threads(1)
    model = workload.build_model()
    ends = workload.client_sizes().cumsum(0).tolist()
    while True:
        task, clients, weights = pipe.recv()
        if task == "measure":
            _load(model, params)
            pipe.send([_loss(model, *_examples(x, y, ends, client)) for client in clients])
            continue
        for total in sums:
            total.zero_()
        for client, weight in zip(clients, weights, strict=True):
            _load(model, params)
            _train(model, *_examples(x, y, ends, client), workload)
            with torch.no_grad():
                for total, param, start in zip(sums, model.parameters(), params, strict=True):
                    total.add_(param - start, alpha=weight)
        pipe.send([0.0] * len(clients))


def _examples(x: Tensor, y: Tensor, ends: list[int], client: int) -> tuple[Tensor, Tensor]:
    part = slice(ends[client - 1] if client else 0, ends[client])
    return x[part], y[part]


@torch.no_grad()
def _load(model: nn.Module, params: list[Tensor]) -> None:
    for own, received in zip(model.parameters(), params, strict=True):
        own.copy_(received)


@torch.no_grad()
def _loss(model: nn.Module, x: Tensor, y: Tensor) -> float:
    losses = [
        functional.cross_entropy(model(a), b, reduction="sum")
        for a, b in zip(torch.split(x, 256), torch.split(y, 256), strict=True)
    ]
    return float(sum(losses)) / len(y)


def _train(model: nn.Module, x: Tensor, y: Tensor, workload: Workload) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=workload.lr)
    model.train()
    for batch in torch.split(torch.randperm(len(y)), workload.batch_size):
        optimizer.zero_grad()
        functional.cross_entropy(model(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

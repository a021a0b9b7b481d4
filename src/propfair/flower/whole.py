"""A whole Flower client for those who have no training loop: the client program of the simulation."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from torch import Tensor, nn

from propfair.algorithms.base import Algorithm, ClientId
from propfair.algorithms.fedavg import FedAvg
from propfair.core.client import LocalTraining, Memory, Workload
from propfair.core.losses import choose_task
from propfair.core.messages import Job
from propfair.core.metrics import choose_metrics
from propfair.core.params import FlatModel
from propfair.core.precision import check_precision
from propfair.core.tasks import LossFunction, Task
from propfair.data.base import ArrayExamples
from propfair.engines.inprocess import InProcessSession
from propfair.errors import ConfigError
from propfair.federation.federation import SPLITS, Federation, Ragged, Split
from propfair.flower.criterion import current_round, nothing_to_measure
from propfair.flower.messages import ARRAYS, METRICS, NUM_EXAMPLES
from propfair.flower.mods import fair_mod, place
from propfair.runs.run import PERSONAL

Data = Mapping[Split, tuple[Tensor, Tensor]]  # inputs and targets of a client
MEMORY = "propfair.memory"  # the record in the client's state


def client_app(
    model: Callable[[], nn.Module],
    data: Callable[[Context], Data],
    *,
    loss: LossFunction | nn.Module | None = None,
    task: str | Task | None = None,
    metrics: Sequence[Any] = (),
    mods: Iterable[Mod] = (),
) -> ClientApp:
    """A whole Flower client: the client program of the simulation, told how to train by the strategy's `local`.

    The personal models of Ditto stay in the client's `context.state`.

    Args:
        model: makes the network.
        data: the client's own inputs and targets, by split; "train" at least. "test" is what is evaluated.
        loss: as for `propfair.train`: cross-entropy, or that of the task; a torch criterion; or losses of examples [B].
        task: as for `propfair.train`: "binary", "multi-label", "regression", "per-position" and so on; None: what
            follows from the loss and the targets.
        metrics: as for `propfair.train`: what is evaluated beside the loss and the score of the task.
        mods: others, such as those for differential privacy.
    """

    def workload(context: Context, algorithm: Algorithm, local: LocalTraining, seed: int) -> Workload:
        own = data(context)
        kind, example_loss = choose_task(task, loss, own["train"][1][:2])
        federation = _OwnData.of(*place(context), own)
        found = choose_metrics(metrics, kind)
        return Workload(federation, algorithm, local, seed, example_loss, task=kind, metrics=found)

    app = ClientApp(mods=[fair_mod(lambda context: len(data(context)["train"][1])), *mods])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        here = current_round()
        if here is None:
            raise ConfigError("client_app is told how to train by a FairStrategy: use it on the server")
        at = here.instruction
        work = workload(context, at.algorithm, at.local, at.seed)
        session = InProcessSession(FlatModel(model()), work)
        check_precision(at.local.precision, work.device, session.model.params.dtype)
        params, buffers = session.model.vectors(_arrays(message))
        session.restore({at.client: memory} if (memory := _load_memory(context)) else {})
        with here.by_us():
            if at.measure:
                if not len(work.federation.split(at.measure)[at.client]):
                    raise ConfigError(nothing_to_measure(at.measure))
                here.full_loss = float(session.losses(params, buffers, [at.client], at.measure)[0])
            correction = None if here.correction is None else here.correction.unsqueeze(0)
            job = Job(at.round, params, buffers, (at.client,), (at.order,), None, torch.ones(1), correction)
            ((here.trained, _, buffers),) = session.replies(job)
        if at.client in session.memories:
            _save_memory(context, session.memories[at.client])
        arrays = ArrayRecord(session.model.state_dict(session.model.params, buffers))
        numbers = MetricRecord({NUM_EXAMPLES: len(work.federation.train[at.client])})
        return Message(RecordDict({ARRAYS: arrays, METRICS: numbers}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        client, _ = place(context)
        session = InProcessSession(FlatModel(model()), workload(context, FedAvg(), LocalTraining(), 0))
        result = session.evaluate(*session.model.vectors(_arrays(message)), "test", [client])
        numbers = {name: float(values[0]) for name, values in result.values().items()}
        if memory := _load_memory(context):
            session.restore({client: memory})
            own = session.evaluate_personal("test", [client])
            numbers |= {f"{PERSONAL}{name}": float(values[0]) for name, values in own.values().items()}
        record = MetricRecord({**numbers, NUM_EXAMPLES: int(result.num_examples[0])})
        return Message(RecordDict({METRICS: record}), reply_to=message)

    return app


class _OwnData(Federation):
    """A federation as one of its clients sees it: its own examples under its own number, and nothing of the others."""

    def __post_init__(self) -> None:
        """The others may well have no examples here."""

    @staticmethod
    def of(client: ClientId, num_clients: int, data: Data) -> "_OwnData":
        present = [split for split in SPLITS if split in data]
        x, y = (torch.cat([data[split][part] for split in present]) for part in (0, 1))
        sizes = [len(data[split][1]) for split in present]
        mine = dict(zip(present, torch.split(torch.arange(len(y)), sizes), strict=True))
        nothing = torch.empty(0, dtype=torch.int64)

        def lists(split: Split) -> Ragged:
            return Ragged.of([mine.get(split, nothing) if k == client else nothing for k in range(num_clients)])

        examples = ArrayExamples(x, y, num_classes=0 if y.is_floating_point() else int(y.max()) + 1)
        names = tuple(map(str, range(num_clients)))
        return _OwnData(examples, names, lists("train"), lists("validation"), lists("test"))


def _arrays(message: Message) -> dict[str, Tensor]:
    return dict(next(iter(message.content.array_records.values())).to_torch_state_dict())


def _load_memory(context: Context) -> Memory | None:
    if MEMORY not in context.state.array_records:
        return None
    return dict(context.state.array_records[MEMORY].to_torch_state_dict())


def _save_memory(context: Context, memory: Memory) -> None:
    context.state[MEMORY] = ArrayRecord({name: Array(tensor) for name, tensor in memory.items()})

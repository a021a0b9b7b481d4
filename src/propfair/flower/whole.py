"""A whole Flower client for those who have no training loop: the client program of the simulation."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from torch import Tensor, nn

from propfair.algorithms.base import Algorithm, ClientId
from propfair.algorithms.fedavg import FedAvg
from propfair.core.checks import settled
from propfair.core.client import LocalTraining, Memory, Workload
from propfair.core.losses import choose_task
from propfair.core.messages import Job
from propfair.core.metrics import choose_metrics
from propfair.core.params import FlatModel
from propfair.core.precision import check_precision
from propfair.core.tasks import LossFunction, Task
from propfair.data.hub import is_table
from propfair.data.lazy import Collate
from propfair.data.tables import is_frame
from propfair.engines.inprocess import InProcessSession
from propfair.errors import ConfigError, DataError
from propfair.federation.federation import Federation, Ragged, Split
from propfair.federation.own import from_datasets
from propfair.flower.criterion import current_round, nothing_to_measure
from propfair.flower.messages import ARRAYS, METRICS, NUM_EXAMPLES
from propfair.flower.mods import fair_mod, place
from propfair.runs.run import PERSONAL

Data = Mapping[Split, Any]  # of a client: (inputs, targets) or a torch data set for each split
MEMORY = "propfair.memory"  # the record in the client's state


def client_app(
    model: Callable[[], nn.Module],
    data: Callable[[Context], Data],
    *,
    loss: LossFunction | nn.Module | None = None,
    task: str | Task | None = None,
    metrics: Sequence[Any] = (),
    collate: Collate | None = None,
    mods: Iterable[Mod] = (),
) -> ClientApp:
    """A whole Flower client: the client program of the simulation, told how to train by the strategy's `local`.

    The personal models of Ditto stay in the client's `context.state`.

    Args:
        model: makes the network.
        data: the client's own examples by split, "train" at least; "test" is what is evaluated. Each is (inputs,
            targets), with a tuple or dict of inputs for models that take several, a map-style torch data set, or one of
            Hugging Face, as for `propfair.train`. No tables and folders of images: a text or a folder must become the
            same number on all clients, and one client can't know the others'.
        loss: as for `propfair.train`: cross-entropy, or that of the task; a torch criterion; or losses of examples [B].
        task: as for `propfair.train`: "binary", "multi-label", "regression", "per-position" and so on; None: what
            follows from the loss and the targets.
        metrics: as for `propfair.train`: what is evaluated beside the loss and the score of the task.
        collate: of torch data sets, makes (inputs, targets) of a list of items, for sequences of unequal length say.
        mods: others, such as those for differential privacy.
    """

    def own(context: Context) -> _OwnData:
        return _OwnData.of(*place(context), data(context), collate)

    def workload(context: Context, algorithm: Algorithm, local: LocalTraining, seed: int) -> Workload:
        federation = own(context)
        kind, example_loss = choose_task(task, loss, federation.first_targets)
        found = choose_metrics(metrics, kind)
        work = Workload(federation, algorithm, local, seed, example_loss, task=kind, metrics=found)
        return settled(model(), work)

    app = ClientApp(mods=[fair_mod(lambda context: own(context).num_train), *mods])

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
    def of(client: ClientId, num_clients: int, data: Data, collate: Collate | None) -> "_OwnData":
        if not isinstance(data, Mapping):
            raise DataError(f"the data of client_app must be a dict with train and test; got {type(data).__name__}")
        for split, given in data.items():
            if isinstance(given, str | Path) or (is_frame(given) and not is_table(given)):
                raise DataError(
                    f"client_app takes (inputs, targets) or a torch data set; got {type(given).__name__} for {split}. "
                    "Make numbers of it in the same way on every client, then pass (inputs, targets)."
                )
        alone = from_datasets([data], collate=collate)
        nothing = torch.empty(0, dtype=torch.int64)

        def lists(split: Split) -> Ragged:
            return Ragged.of([alone.split(split)[0] if k == client else nothing for k in range(num_clients)])

        names = tuple(map(str, range(num_clients)))
        return _OwnData(alone.examples, names, lists("train"), lists("validation"), lists("test"))

    @property
    def num_train(self) -> int:
        """The training examples of this client."""
        return int(self.train.lengths.sum())

    @property
    def first_targets(self) -> Tensor:
        """Of a few training examples, from which the task follows."""
        return self.examples.targets(self.train.values[:2])


def _arrays(message: Message) -> dict[str, Tensor]:
    return dict(next(iter(message.content.array_records.values())).to_torch_state_dict())


def _load_memory(context: Context) -> Memory | None:
    if MEMORY not in context.state.array_records:
        return None
    return dict(context.state.array_records[MEMORY].to_torch_state_dict())


def _save_memory(context: Context, memory: Memory) -> None:
    context.state[MEMORY] = ArrayRecord({name: Array(tensor) for name, tensor in memory.items()})

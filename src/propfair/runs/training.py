"""Runs the rounds of one training: evaluates, records, checkpoints, and stops cleanly."""

import copy
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from propfair.core.aggregator import Rounds
from propfair.core.client import Workload, check_personal
from propfair.core.evaluation import Evaluation
from propfair.core.params import FlatModel, all_finite
from propfair.engines.server import Server
from propfair.engines.session import Engine, Session
from propfair.errors import ConfigError, DataError, PropFairWarning, TrainingError
from propfair.federation.federation import SPLITS, Federation, Split
from propfair.rewrite import Rewritten, rewrite
from propfair.runs.folder import Checkpoint, RunFolder
from propfair.runs.interrupt import stop_on_signal
from propfair.runs.loggers import Sink, Sinks, evaluation_values
from propfair.runs.records import Records, count_dropped, last_evaluations
from propfair.runs.result import EndState
from propfair.seeds import untouched_global_rng

_CHECKPOINT_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long to train and when to look.

    Args:
        rounds: communication rounds.
        eval_every: rounds between evaluations of all clients; the last round is always evaluated.
        eval_splits: what is evaluated then; splits that no client has are skipped.
        final_splits: what is evaluated after the last round only.
        checkpoint_every: rounds between checkpoints, if there is a run folder. Where rounds are slow there is one a
            minute at least.
    """

    rounds: int = 50
    eval_every: int = 10
    eval_splits: tuple[Split, ...] = ("validation", "test")
    final_splits: tuple[Split, ...] = ()
    checkpoint_every: int = 10

    def __post_init__(self) -> None:
        for name in ("rounds", "eval_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1; got {name}={getattr(self, name)}")


class Progress(NamedTuple):
    """What a watcher is told after each round."""

    round: int
    rounds: int
    dropped: int  # clients that diverged in this round
    evaluation: Evaluation | None  # of this round, on the first of the evaluated splits
    seconds: float  # since the start, breaks left out


@dataclass
class Trained:
    """The end of a training."""

    state: EndState
    rounds: int
    reason: str
    records: Records
    model: dict[str, Tensor]  # state dict
    evaluations: dict[Split, Evaluation] = field(default_factory=dict)  # of the last evaluated round
    personal: dict[Split, Evaluation] = field(default_factory=dict)
    num_dropped: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)  # about how clients were run


def fit(
    module: nn.Module,
    work: Workload,
    *,
    engine: Engine,
    rounds: Rounds,
    schedule: Schedule,
    name: str = "run",
    folder: RunFolder | None = None,
    lean: bool = True,
    sinks: Sink | None = None,
    watch: Callable[[Progress], None] = lambda _: None,
) -> Trained:
    """Train, from the newest checkpoint of `folder` if it has one.

    Ctrl-C or SIGTERM ends it after the round that is under way, all clients diverging ends it too; the last good model
    is kept in both cases. A second Ctrl-C ends it at once: what was done since the last checkpoint is then lost.
    """
    trimmed = trim(module, work) if lean else Rewritten(module)
    model = FlatModel(trimmed.module, work.device)
    with engine.start(model, work) as session, stop_on_signal() as stop:
        server = Server(session, rounds, model.params, model.buffers)
        trained = Trained("finished", 0, "", Records(name), {})
        if folder is not None:
            restore(server, session, folder, trained)
        session.num_rounds = schedule.rounds - server.round
        clock = Clock(trained.seconds)
        saved = server.round
        sinks = sinks or Sinks({})
        sinks.begin(server.round)
        try:
            while server.round < schedule.rounds and not stop:
                outcome = server.run_round()
                trained.records.add_outcome(outcome)
                for event in session.events:
                    trained.records.add_event(event)
                session.events.clear()
                trained.num_dropped += len(outcome.dropped)
                last = server.round == schedule.rounds
                due = last or server.round % schedule.eval_every == 0
                values = {f"round/{key}": value for key, value in outcome.diagnostics.items()}
                if due:
                    values |= _evaluate(server, session, schedule, trained)
                sinks.log(server.round, {key: value for key, value in values.items() if math.isfinite(value)})
                if folder is not None and (
                    last or stop or server.round % schedule.checkpoint_every == 0 or clock.lap() > _CHECKPOINT_SECONDS
                ):
                    save(server, session, folder, trained.records, clock.total())
                    saved = server.round
                    clock.start_lap()
                shown = next(iter(trained.evaluations.values()), None) if due else None
                watch(Progress(server.round, schedule.rounds, len(outcome.dropped), shown, clock.total()))
            if server.round < schedule.rounds:
                trained.state, trained.reason = "interrupted", f"stopped by {stop.signal} after round {server.round}"
        except TrainingError as error:
            trained.state, trained.reason = "failed", str(error)
        trained.rounds, trained.seconds, trained.notes = server.round, clock.total(), session.notes
        if folder is not None and saved < server.round:
            save(server, session, folder, trained.records, trained.seconds)
        sinks.end(trained.state)
        trained.model = trimmed.export(model.state_dict(server.released, server.buffers))
    return trained


def trim(module: nn.Module, work: Workload) -> Rewritten:
    """The module that is trained in place of `module`: equal for the size of the inputs, without wasted arithmetic.

    Left alone off the CPU, where clients start from models of their own, and where weights that get no gradient would
    change all the same. Layers are laid out channels last where there is a max-pool, which is many times faster so; a
    rule rather than a measurement, since the layout decides the last bits of a run.
    """
    local = work.local
    if torch.device(work.device).type != "cpu" or local.optimizer not in ("sgd", "Adam") or work.starts is not None:
        return Rewritten(module)
    x = work.federation.examples.inputs(work.federation.train[0][:1])
    pools = any(isinstance(layer, nn.MaxPool2d) for layer in module.modules())
    found = rewrite(module, x.shape[1:], batch_size=local.batch_size, dtype=x.dtype, channels_last=pools)
    decays = local.weight_decay or local.options.get("weight_decay")
    return found if found.exact_with_weight_decay or not decays else Rewritten(module)


class Clock:
    """Seconds of a run over all its sessions, and since the last checkpoint."""

    def __init__(self, before: float) -> None:
        self._began = time.monotonic() - before
        self.start_lap()

    def start_lap(self) -> None:
        self._lap = time.monotonic()

    def lap(self) -> float:
        return time.monotonic() - self._lap

    def total(self) -> float:
        return time.monotonic() - self._began


def check_workload(module: nn.Module, work: Workload) -> None:
    """Find what would only fail, or silently go wrong, in the middle of training."""
    federation, classes = work.federation, work.federation.examples.num_classes
    for name, tensor in federation.examples.tensors().items():
        if tensor.is_floating_point() and not all_finite(tensor):
            bad = int((~torch.isfinite(tensor)).sum())
            raise DataError(f"the data has {bad} values that are nan or infinite (in {name!r}); clean them first")
    labels = federation.examples.labels
    if classes and (int(labels.min()) < 0 or int(labels.max()) >= classes):
        raise DataError(
            f"labels must lie in 0..{classes - 1}; found labels from {int(labels.min())} to {int(labels.max())}"
        )
    if isinstance(work.local.steps, tuple) and len(work.local.steps) != federation.num_clients:
        raise ConfigError(f"local.steps lists {len(work.local.steps)} clients, but there are {federation.num_clients}")
    check_personal(work)
    few = federation.train[0][:2]
    was_training = module.training
    module.to(work.device).eval()
    with torch.no_grad():
        x, y = federation.examples.inputs(few).to(work.device), federation.examples.targets(few).to(work.device)
        try:
            output = module(x)
        except RuntimeError as error:
            raise ConfigError(
                f"the model {type(module).__name__} does not take inputs of shape {tuple(x.shape[1:])}: {error}"
            ) from None
        if classes and (output.ndim != 2 or output.shape[1] != classes):
            raise ConfigError(
                f"the model's output must be [batch, {classes}] for {classes} classes; got {list(output.shape)}"
            )
        losses = work.loss(output, y)
    if losses.shape != (len(few),):
        raise ConfigError(
            f"the loss must give one number for each example, [{len(few)}]; got {list(losses.shape)}. "
            "Use reduction='none': propfair takes the mean itself."
        )
    module.train(was_training)
    _check_lone_examples(module, work)


def _check_lone_examples(module: nn.Module, work: Workload) -> None:
    """BatchNorm over a single value has no variance, and torch refuses it: find such a batch before training."""
    if not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules()):
        return
    federation, size = work.federation, work.local.batch_size
    lengths = federation.train.lengths
    reached = torch.from_numpy(work.local.steps_of(range(len(lengths)), lengths.numpy())) >= -(-lengths // size)
    lone = (reached & (lengths % size == 1 if size > 1 else lengths > 0)).nonzero().flatten().tolist()
    if not lone:
        return
    with untouched_global_rng(), torch.no_grad():
        try:
            copy.deepcopy(module).train()(federation.examples.inputs(federation.train[lone[0]][:1]).to(work.device))
        except ValueError as error:
            raise ConfigError(
                f"client {lone[0]} ({federation.names[lone[0]]}) has {int(lengths[lone[0]])} training examples, so "
                f"that with local.batch_size={size} a batch has one example, which BatchNorm can't take: {error}. "
                "Use another batch size, or GroupNorm."
            ) from None


def restore(server: Server, session: Session, folder: RunFolder, trained: Trained) -> None:
    """Continue where the newest whole checkpoint stands; damaged ones are passed over with a warning."""
    checkpoint, damaged = folder.load_checkpoint(session.work.device)
    for text in damaged:
        warnings.warn(text, PropFairWarning, stacklevel=2)
    if checkpoint is None:
        return
    tensors = checkpoint.tensors
    server.round, trained.seconds = checkpoint.round, checkpoint.seconds
    server.params, server.buffers = tensors["params"], tensors["buffers"]
    server.state = {key.removeprefix("state."): t for key, t in tensors.items() if key.startswith("state.")}
    memories: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        if key.startswith("memory."):
            _, client, field_name = key.split(".", 2)
            memories.setdefault(int(client), {})[field_name] = tensor
    session.restore(memories)
    records, sizes = folder.records(), split_sizes(session.work.federation)
    trained.num_dropped = count_dropped(records)
    trained.evaluations = last_evaluations(records, sizes)
    trained.personal = last_evaluations(records, sizes, "personal_")


def save(server: Server, session: Session, folder: RunFolder, records: Records, seconds: float) -> None:
    """Write a checkpoint of the whole training, and before it which engine the bits come from."""
    environment = folder.environment
    if (environment.get("engine_choice", ""), environment.get("notes", [])) != (session.choice, session.notes):
        folder.save_environment({**environment, "engine_choice": session.choice, "notes": session.notes})
    tensors = {"params": server.params, "buffers": server.buffers}
    tensors |= {f"state.{key}": tensor for key, tensor in server.state.items()}
    for client, memory in session.memories.items():
        tensors |= {f"memory.{client}.{key}": tensor for key, tensor in memory.items()}
    folder.save_checkpoint(Checkpoint(server.round, tensors, seconds), records)
    folder.save_status("running", server.round, seconds=seconds)


def split_sizes(federation: Federation) -> dict[str, list[int]]:
    """By split, how many examples each client has."""
    return {split: federation.split(split).lengths.tolist() for split in SPLITS}


def _evaluate(server: Server, session: Session, schedule: Schedule, trained: Trained) -> dict[str, float]:
    """Measure all clients; the statistics by name."""
    values: dict[str, float] = {}
    federation = session.work.federation
    everyone = range(federation.num_clients)
    due = (*schedule.eval_splits, *(schedule.final_splits if server.round == schedule.rounds else ()))
    for split in SPLITS:
        if split not in due or not len(federation.split(split).values):
            continue
        evaluation = session.evaluate(server.released, server.buffers, split, everyone)
        trained.evaluations[split] = evaluation
        trained.records.add_evaluation(server.round, split, evaluation)
        values |= evaluation_values(split, evaluation)
        if session.work.algorithm.personal is not None:
            trained.personal[split] = session.evaluate_personal(split, everyone)
            trained.records.add_evaluation(server.round, split, trained.personal[split], "personal_")
            values |= evaluation_values(split, trained.personal[split], "personal_")
    return values

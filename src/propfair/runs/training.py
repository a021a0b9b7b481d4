"""Runs the rounds of one training: evaluates, records, checkpoints, and stops cleanly."""

import logging
import math
import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from propfair.core.client import Workload
from propfair.core.evaluation import Evaluation
from propfair.core.params import FlatModel
from propfair.core.precision import precision_note
from propfair.core.rounds import Rounds
from propfair.engines.server import Server
from propfair.engines.session import Engine, Session
from propfair.engines.together import NOTE as TOGETHER
from propfair.errors import PropFairWarning, TrainingError
from propfair.federation.federation import SPLITS, Split
from propfair.rewrite import Rewritten, rewrite
from propfair.runs.callbacks import Callback, Training, callback_tensors, final_vectors, restore_callbacks
from propfair.runs.checkpoints import Checkpoint
from propfair.runs.environment import directions
from propfair.runs.folder import RunFolder
from propfair.runs.interrupt import stop_on_signal
from propfair.runs.loggers import Sink, Sinks, evaluation_values
from propfair.runs.progress import AfterRound, Progress
from propfair.runs.records import Records
from propfair.runs.run import PERSONAL, EndState
from propfair.runs.schedule import Schedule

_CHECKPOINT_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that decides a training beside the first model.

    Attributes:
        work: the clients, the algorithm, local training, and the seed.
        engine: how clients are run.
        server: how rounds are run.
        schedule: how many, and when to look.
        name: of the run.
        lean: leave out arithmetic that only meets padding.
        callbacks: what looks on between the rounds.
    """

    work: Workload
    engine: Engine
    server: Rounds
    schedule: Schedule
    name: str
    lean: bool = True
    callbacks: tuple[Callback, ...] = ()


@dataclass
class Trained:
    """The end of a training."""

    state: EndState
    rounds: int
    reason: str
    records: Records
    model: dict[str, Tensor]  # state dict
    seconds: float = 0.0
    choice: str = ""  # which engine ran the clients, if it is not the one that was asked for
    notes: tuple[str, ...] = ()  # about how clients were run
    personal: dict[str, dict[str, Tensor]] = field(default_factory=dict)  # state dicts of the clients' own models


def fit(
    module: nn.Module,
    recipe: Recipe,
    *,
    folder: RunFolder | None = None,
    sinks: Sink | None = None,
    after_round: AfterRound = lambda _: None,
) -> Trained:
    """Train, from the newest checkpoint of `folder` if it has one.

    Ctrl-C or SIGTERM ends it after the round that is under way, all clients diverging ends it too; the last good model
    is kept in both cases. A second Ctrl-C ends it at once: what was done since the last checkpoint is then lost.
    """
    work, schedule = recipe.work, recipe.schedule
    rewritten = make_lean(module, work) if recipe.lean else Rewritten(module)
    model = FlatModel(rewritten.module, work.device)
    with recipe.engine.start(model, work) as session, stop_on_signal() as stop:
        server = Server(session, recipe.server, model.params, model.buffers)
        if line := precision_note(work.local.precision, work.device):
            session.note(line)
        trained = Trained("finished", 0, "", Records(recipe.name), {})
        before = Checkpoint(0, {}) if folder is None else restore(server, session, folder, recipe.callbacks)
        session.num_rounds = schedule.rounds - server.round
        clock = Clock(before.seconds, session)
        saved = server.round if before.measured else server.round - 1
        sinks = sinks or Sinks({})
        sinks.begin(saved)
        shares, better = work.federation.share.numpy(), directions(work)

        def vectors() -> dict[str, Tensor]:
            return {"params": server.released.clone(), "buffers": server.buffers.clone()}

        def exported(own: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return rewritten.export(model.state_dict(own["params"], own["buffers"]))

        served: dict[Split, Evaluation] = {}
        view = Training(server.round, schedule.rounds, None, lambda: exported(vectors()), vectors)
        if folder is not None and not before.measured:
            values = _diagnosed(folder, server.round)
            last = server.round == schedule.rounds
            if last or server.round % schedule.eval_every == 0:
                splits = (*schedule.eval_splits, *(schedule.final_splits if last else ()))
                own = (last and final_vectors(recipe.callbacks)) or vectors()
                served, logged = _evaluate(server, own, session, splits, trained.records)
                values |= logged
                if last:
                    _keep_answers(server.round, served, trained.records)
            sinks.log(server.round, _finite(values))
        try:
            while server.round < schedule.rounds and not stop and not view.stopped:
                if _stopped_before(view, recipe.callbacks):
                    break
                outcome = server.run_round()
                trained.records.add_outcome(outcome)
                for event in session.events:
                    trained.records.add_event(event)
                session.events.clear()
                last = server.round == schedule.rounds
                due = last or server.round % schedule.eval_every == 0
                values = {f"round/{key}": value for key, value in outcome.diagnostics.items()}
                served = {}
                if due:
                    splits = (*schedule.eval_splits, *(schedule.final_splits if last else ()))
                    served, logged = _evaluate(server, vectors(), session, splits, trained.records)
                    values |= logged
                sinks.log(server.round, _finite(values))
                dropped = len(outcome.dropped)
                now = Progress(server.round, schedule.rounds, dropped, served, shares, clock.total(), better)
                view.round, view.progress = server.round, now
                for callback in recipe.callbacks:
                    callback.after_round(view)
                if last or view.stopped:
                    final = final_vectors(recipe.callbacks)
                    if final is not None:
                        trained.records.forget_evaluation(server.round)
                        served = {}
                    left = {*schedule.eval_splits, *schedule.final_splits} - served.keys()
                    rest, values = _evaluate(server, final or vectors(), session, left, trained.records)
                    _keep_answers(server.round, {**served, **rest}, trained.records)
                    sinks.log(server.round, _finite(values))
                    last = True
                if folder is not None and (
                    last or stop or server.round % schedule.checkpoint_every == 0 or clock.lap() > _CHECKPOINT_SECONDS
                ):
                    save(server, session, folder, trained.records, clock.total(), recipe.callbacks)
                    saved = server.round
                    clock.start_lap()
                after_round(now)
            trained.reason = view.stopped
            ended = server.round == schedule.rounds or bool(view.stopped)
            if not ended:
                trained.state, trained.reason = "interrupted", f"stopped by {stop.signal} after round {server.round}"
        except TrainingError as error:
            ended = False
            trained.state, trained.reason = "failed", str(error)
        trained.rounds, trained.seconds = server.round, clock.total()
        trained.choice, trained.notes = session.choice, tuple(session.notes)
        if folder is not None and saved < server.round:
            save(server, session, folder, trained.records, trained.seconds, recipe.callbacks)
        sinks.end(trained.state)
        trained.model = exported((ended and final_vectors(recipe.callbacks)) or vectors())
        if work.algorithm.personal is not None:
            trained.personal = {
                work.federation.names[client]: exported(own) for client, own in sorted(session.memories.items())
            }
    return trained


def _stopped_before(view: Training, callbacks: Sequence[Callback]) -> bool:
    """Let callbacks look before a round; whether one of them ends the training."""
    for callback in callbacks:
        callback.before_round(view)
    return bool(view.stopped)


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    return {key: value for key, value in values.items() if math.isfinite(value)}


def _diagnosed(folder: RunFolder, number: int) -> dict[str, float]:
    """What was logged of a round beside evaluations, read from its records."""
    rows = [row for row in folder.tables().rounds.to_pylist() if row["round"] == number]
    return {f"round/{row['metric']}": row["value"] for row in rows}


def make_lean(module: nn.Module, work: Workload) -> Rewritten:
    """The module that is trained in place of `module`: equal for the size of the inputs, without wasted arithmetic.

    Left alone off the CPU, where clients start from models of their own, and where weights that get no gradient would
    change all the same. Layers are laid out channels last where there is a max-pool, which is many times faster so; a
    rule rather than a measurement, since the layout decides the last bits of a run.
    """
    local = work.local
    if torch.device(work.device).type != "cpu" or local.optimizer not in ("sgd", "Adam") or work.starts is not None:
        return Rewritten(module)
    x = work.federation.examples.inputs(work.federation.train[0][:1])
    if not isinstance(x, Tensor):
        return Rewritten(module)
    pools = any(isinstance(layer, nn.MaxPool2d) for layer in module.modules())
    found = rewrite(module, x.shape[1:], batch_size=local.batch_size, dtype=x.dtype, channels_last=pools)
    decays = local.weight_decay or local.options.get("weight_decay")
    return found if found.exact_with_weight_decay or not decays else Rewritten(module)


class Clock:
    """Seconds of a run over all its sessions, and since the last checkpoint; those that went to other runs left out."""

    def __init__(self, before: float, session: Session | None = None) -> None:
        self._began, self._session = time.monotonic() - before, session
        self.start_lap()

    def start_lap(self) -> None:
        self._lap = time.monotonic()

    def lap(self) -> float:
        return time.monotonic() - self._lap

    def total(self) -> float:
        return time.monotonic() - self._began - (self._session.waited if self._session else 0.0)


def restore(server: Server, session: Session, folder: RunFolder, callbacks: Sequence[Callback] = ()) -> Checkpoint:
    """Continue where the newest readable checkpoint stands; what is passed over is told in warnings.

    Returns that checkpoint, or an empty one of round 0.
    """
    checkpoint, passed_over = folder.load_checkpoint(session.work.device)
    for text in passed_over:
        warnings.warn(text, PropFairWarning, stacklevel=2)
    if checkpoint is None:
        return Checkpoint(0, {})
    tensors = checkpoint.tensors
    server.restore(checkpoint.round, tensors)
    memories: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        if key.startswith("memory."):
            _, client, field_name = key.split(".", 2)
            memories.setdefault(int(client), {})[field_name] = tensor
    session.restore(memories)
    if TOGETHER in folder.environment.get("notes", ()):  # it stays true of the rounds before
        session.note(TOGETHER, logging.DEBUG)
    restore_callbacks(callbacks, tensors)
    return checkpoint


def save(
    server: Server, session: Session, folder: RunFolder, records: Records, seconds: float,
    callbacks: Sequence[Callback] = (),
) -> None:  # fmt: skip
    """Write a checkpoint of the whole training, and before it which engine the bits come from."""
    environment = folder.environment
    if (environment.get("engine_choice", ""), environment.get("notes", [])) != (session.choice, session.notes):
        folder.save_environment({**environment, "engine_choice": session.choice, "notes": session.notes})
    tensors = server.tensors() | callback_tensors(callbacks)
    for client, memory in session.memories.items():
        tensors |= {f"memory.{client}.{key}": tensor for key, tensor in memory.items()}
    folder.save_checkpoint(Checkpoint(server.round, tensors, seconds), records)
    folder.save_status("running", server.round, seconds=seconds)


def _keep_answers(number: int, served: Mapping[Split, Evaluation], records: Records) -> None:
    """The answers of the last models to the test examples: with them runs are compared example by example."""
    if "test" in served:
        records.add_answers(number, "test", served["test"])


def _evaluate(
    server: Server, own: Mapping[str, Tensor], session: Session, splits: Collection[Split], records: Records
) -> tuple[dict[Split, Evaluation], dict[str, float]]:
    """Measure a model on all clients: what the models that they are served by do for them, and statistics by name."""
    served: dict[Split, Evaluation] = {}
    values: dict[str, float] = {}
    federation = session.work.federation
    everyone = range(federation.num_clients)
    for split in SPLITS:
        if split not in splits or not len(federation.split(split).values):
            continue
        measured = {"": session.evaluate(own["params"], own["buffers"], split, everyone)}
        if session.work.algorithm.personal is not None:
            measured[PERSONAL] = session.evaluate_personal(split, everyone)
        for prefix, evaluation in measured.items():
            records.add_evaluation(server.round, split, evaluation, prefix)
            values |= evaluation_values(split, evaluation, federation.share.numpy(), prefix)
            served[split] = evaluation
    return served, values

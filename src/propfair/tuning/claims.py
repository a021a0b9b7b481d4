"""Who runs which trial: claims on the points of a search, in an Optuna storage that any number of processes share.

A claim is a trial in state RUNNING that carries the number of its point and of the attempt. The storage numbers trials
one by one, so of two claims on the same point and attempt the one with the lower number stands and the other steps
back: no point is run twice. Who holds a claim shows it is alive by a counter that it raises. If the counter stands
still for a while, or the process is known to be gone, the claim is abandoned and the next attempt is free: no point
is lost. Nothing here depends on clocks of different machines, or on locks of the database.
"""

import contextlib
import os
import socket
import sqlite3
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from propfair.errors import ConfigError, DataError, MissingExtraError, PropFairError
from propfair.runs.seal import KEY, sealed

if TYPE_CHECKING:
    import optuna

BEAT_SECONDS = 5.0
GRACE_SECONDS = 60.0  # without a beat


@dataclass(frozen=True)
class Standing:
    """The state of one point.

    Attributes:
        state: "free", "running", "done", "pruned" or "failed".
        trial: that stands for the point; None for a free one.
    """

    state: str
    trial: "optuna.trial.FrozenTrial | None" = None

    @property
    def ended(self) -> bool:
        """Nothing is left to do."""
        return self.state in ("done", "pruned", "failed")


class Claim:
    """The right to run one point. Ends with exactly one of `done`, `failed`, `pruned`, `release`."""

    def __init__(self, study: "optuna.Study", trial_id: int, point: int) -> None:
        import optuna

        self._study = study
        self.trial = optuna.trial.Trial(study, trial_id)
        self.point = point

    @contextlib.contextmanager
    def alive(self) -> Iterator[None]:
        """Tells the others that the work goes on."""
        ended = threading.Event()

        def beat() -> None:
            number = 1
            while not ended.wait(BEAT_SECONDS):
                with contextlib.suppress(Exception):  # a busy database: the next beat will do
                    self.trial.set_user_attr("beat", number)
                number += 1

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def done(self, value: float, attributes: Mapping[str, Any]) -> None:
        """The result."""
        self._end("COMPLETE", value, **attributes)

    def failed(self, reason: str, *, diverged: bool = False) -> None:
        """It can't be done; it is not tried again. Training that diverges is a result, anything else a defect."""
        self._end("FAIL", reason=reason, diverged=diverged)

    def pruned(self) -> None:
        """It was not worth going on."""
        self._end("PRUNED")

    def release(self) -> None:
        """Stopped on the way: anybody may go on with it."""
        self._end("FAIL", released=True)

    def _end(self, state: str, value: float | None = None, **attributes: Any) -> None:
        import optuna

        for key, content in attributes.items():
            self.trial.set_user_attr(key, content)
        self.trial.set_user_attr(KEY, _checksum(state, value, self.trial.params, self.trial.user_attrs))
        self._study.tell(self.trial, value, state=optuna.trial.TrialState[state])


class Board:
    """The points of one study and who works on them.

    Args:
        study: of Optuna.
        num_points: how many there are, numbered from 0.
        where: the storage, for errors.
    """

    def __init__(self, study: "optuna.Study", num_points: int, where: str = "the storage of the sweep") -> None:
        self.study, self._where = study, where
        with storage_errors(where):
            self._sealed = bool(study.user_attrs.get("sealed"))  # those of version 0.1.0 are not
        self.num_points = num_points
        self._seen: dict[int, tuple[int, float]] = {}  # trial number: its counter, and when it was first seen so

    def standings(self) -> list[Standing]:
        """The state of every point."""
        holders = _holders(self._trials())
        return [self._standing(holders.get(point)) for point in range(self.num_points)]

    def claim(
        self, params: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]] | None, first: int = 0
    ) -> Claim | None:
        """Take a free point, looking from point `first` on; None if there is none now.

        Args:
            params: for each point its values and their Optuna distributions; None: they are suggested later.
            first: where to look first, different for each worker so that they do not all want the same.
        """
        holders = _holders(self._trials())
        for step in range(self.num_points):
            point = (first + step) % self.num_points
            holder = holders.get(point)
            if self._standing(holder).state != "free":
                continue
            attempt = 0 if holder is None else holder.user_attrs["attempt"] + 1
            won = self._take(point, attempt, params[point] if params is not None else _inherited(holder))
            if won is not None:
                return won
        return None

    def _take(self, point: int, attempt: int, params: tuple[Mapping[str, Any], Mapping[str, Any]]) -> Claim | None:
        import optuna

        token = uuid.uuid4().hex
        values, distributions = params
        self.study.add_trial(
            optuna.create_trial(
                state=optuna.trial.TrialState.RUNNING, params=dict(values), distributions=dict(distributions),
                user_attrs={
                    "point": point, "attempt": attempt, "token": token, "beat": 0,
                    "host": socket.gethostname(), "pid": os.getpid(),
                },
            )
        )  # fmt: skip
        trials = self._trials()
        own = next(trial for trial in trials if trial.user_attrs["token"] == token)
        stands = _holders(trials)[point]
        claim = Claim(self.study, own._trial_id, point)
        if stands.number == own.number:
            return claim
        claim._end("FAIL", superseded=True)
        return None

    def _trials(self) -> "list[optuna.trial.FrozenTrial]":
        with storage_errors(self._where):
            found = [trial for trial in self.study.get_trials(deepcopy=False) if "token" in trial.user_attrs]
            for trial in found:
                _check(trial, self._where, must=self._sealed)
            return found

    def _standing(self, trial: "optuna.trial.FrozenTrial | None") -> Standing:
        if trial is None:
            return Standing("free")
        name = trial.state.name
        if name == "RUNNING":
            return Standing("free" if self._abandoned(trial) else "running", trial)
        if name == "FAIL":
            return Standing("free" if trial.user_attrs.get("released") else "failed", trial)
        return Standing({"COMPLETE": "done", "PRUNED": "pruned"}[name], trial)

    def _abandoned(self, trial: "optuna.trial.FrozenTrial") -> bool:
        holder = trial.user_attrs
        if holder["host"] == socket.gethostname() and not _exists(holder["pid"]):
            return True
        counter, since = self._seen.get(trial.number, (-1, 0.0))
        if holder["beat"] != counter:
            self._seen[trial.number] = (holder["beat"], time.monotonic())
            return False
        return time.monotonic() - since > GRACE_SECONDS


def _holders(trials: "list[optuna.trial.FrozenTrial]") -> "dict[int, optuna.trial.FrozenTrial]":
    """For each point the trial that stands for it: the first one of its last attempt."""
    holders: dict[int, optuna.trial.FrozenTrial] = {}
    for trial in sorted(trials, key=lambda trial: trial.number):
        point = trial.user_attrs["point"]
        if point not in holders or trial.user_attrs["attempt"] > holders[point].user_attrs["attempt"]:
            holders[point] = trial
    return holders


def open_storage(url: str) -> "optuna.storages.BaseStorage":
    """The storage behind a URL of Optuna, such as sqlite:///sweep.db or postgresql://host/name."""
    try:
        import optuna
    except ImportError:
        raise MissingExtraError("a sweep", "sweep") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    options = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {}
    for tries_left in (4, 3, 2, 1, 0):
        try:
            _check_database(url)
            return optuna.storages.RDBStorage(url, engine_kwargs=options)
        except Exception as error:
            if not tries_left:
                raise ConfigError(f"can't open the storage {url}: {str(error).splitlines()[0]}") from None
            time.sleep(0.3)  # two processes that make the same new database get into each other's way
    raise AssertionError


def open_study(storage: "optuna.storages.BaseStorage", name: str, fingerprint: str, **options: Any) -> "optuna.Study":
    """The study of this name, made if it is not there; refused if it is about something else."""
    import optuna

    with storage_errors("the storage of the sweep"):
        study = optuna.create_study(
            storage=storage, study_name=name, direction="maximize", load_if_exists=True, **options
        )
        known = study.user_attrs.get("fingerprint")
        if known is None:
            study.set_user_attr("sealed", True)
            study.set_user_attr("fingerprint", fingerprint)
    if known not in (None, fingerprint):
        raise ConfigError(
            f"the storage has a study called {name!r} that was made with other settings. Choose another --out or "
            "--storage, or another name in the file."
        )
    return study


@contextlib.contextmanager
def storage_errors(where: str) -> Iterator[None]:
    """Whatever a damaged database leads to is a `DataError` that names it."""
    try:
        yield
    except PropFairError:
        raise
    except Exception as error:
        raise DataError(f"{where} is damaged or can't be read: {str(error).splitlines()[0]}") from error


def _check_database(url: str) -> None:
    """A file of SQLite is looked through once, so that damage shows before anything is written to it."""
    path = url.removeprefix("sqlite:///")
    if path != url and Path(path).exists():
        with contextlib.closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=60)) as database:
            ((found,), *_) = database.execute("PRAGMA quick_check(1)")
        if found != "ok":
            raise DataError(f"{path} is damaged: {found}")


def _checksum(state: str, value: float | None, params: Mapping[str, Any], attributes: Mapping[str, Any]) -> str:
    """Of all that is said about a trial which has ended."""
    said = {name: content for name, content in attributes.items() if name not in (KEY, "beat")}
    return str(sealed({"state": state, "value": value, "params": dict(params), "attributes": said})[KEY])


def _check(trial: "optuna.trial.FrozenTrial", where: str, *, must: bool) -> None:
    """A `DataError` unless a trial that has ended is what was written."""
    attributes = trial.user_attrs
    if trial.state.is_finished() and (must or KEY in attributes):
        value = trial.value if trial.state.name == "COMPLETE" else None
        if attributes.get(KEY) != _checksum(trial.state.name, value, trial.params, attributes):
            raise DataError(
                f"{where} is damaged or was edited: trial {trial.number} has the wrong checksum. Delete it, and the "
                "sweep takes what it needs from the run folders."
            )


def _inherited(trial: "optuna.trial.FrozenTrial | None") -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """What an abandoned attempt was about."""
    return ({}, {}) if trial is None else (trial.params, trial.distributions)


def _exists(pid: int) -> bool:
    if sys.platform == "win32":  # signal 0 would end the process there
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

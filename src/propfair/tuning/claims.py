"""Who runs which trial: claims on the points of a search, in an Optuna storage that any number of processes share.

A claim is a trial in state RUNNING that carries the number of its point and of the attempt. The storage numbers trials
one by one, so of two claims on the same point and attempt the one with the lower number stands and the other steps
back: no point is run twice. Who holds a claim shows it is alive by a counter that it raises. If the counter stands
still for a while, or the process is known to be gone, the claim is abandoned and the next attempt is free: no point
is lost. Nothing here depends on clocks of different machines, or on locks of the database.
"""

import contextlib
import functools
import itertools
import os
import socket
import sqlite3
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
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
_CLAIM, _RESULT = "claim", "result"  # the attributes of a trial, beside its beat


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

    @property
    def said(self) -> dict[str, Any]:
        """What is said about the trial."""
        return {} if self.trial is None else said_of(self.trial)


class Claim:
    """The right to run one point. Ends with exactly one of `done`, `failed`, `pruned`, `release`."""

    def __init__(self, study: "optuna.Study", claimed: "optuna.trial.FrozenTrial") -> None:
        self._study, self._storage, self._trial_id = study, study._storage, claimed._trial_id
        self._claimed, self.point = claimed, int(said_of(claimed)["point"])
        self.ended = False

    @functools.cached_property
    def trial(self) -> "optuna.trial.Trial":
        """As Optuna's samplers and pruners know it."""
        import optuna

        return optuna.trial.Trial(self._study, self._trial_id)

    def beat(self, number: int) -> None:
        """A sign of life: a number that was not said before."""
        self._storage.set_trial_user_attr(self._trial_id, "beat", number)

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

        self.ended = True
        params = self.trial.params if "trial" in vars(self) else self._claimed.params  # with what was suggested since
        seal = _checksum(state, value, params, {**said_of(self._claimed), **attributes})
        self._storage.set_trial_user_attr(self._trial_id, _RESULT, {**attributes, KEY: seal})
        if state == "PRUNED":  # Optuna takes the last value that was reported
            self._study.tell(self.trial, state=optuna.trial.TrialState.PRUNED)
        else:
            values = None if value is None else [value]
            self._storage.set_trial_state_values(self._trial_id, optuna.trial.TrialState[state], values)


@contextlib.contextmanager
def alive(claims: Sequence[Claim]) -> Iterator[None]:
    """Tells the others that the work on these claims goes on, for as long as each has not ended."""
    ended = threading.Event()
    pause = min(BEAT_SECONDS * len(claims), GRACE_SECONDS / 3)  # many signs take their time

    def beat() -> None:
        number = 1
        while not ended.wait(pause):
            for claim in claims:
                if not claim.ended:
                    with contextlib.suppress(Exception):  # a busy database: the next beat will do
                        claim.beat(number)
            number += 1

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


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
        self._checked: set[int] = set()  # trials that have ended and are what was written
        self._seen: dict[int, tuple[int, float]] = {}  # trial number: its counter, and when it was first seen so

    def standings(self) -> list[Standing]:
        """The state of every point."""
        holders = _holders(self._trials())
        return [self._standing(holders.get(point)) for point in range(self.num_points)]

    def claim(
        self,
        params: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]] | None,
        first: int = 0,
        among: Sequence[int] | None = None,
        most: int = 1,
        about: Callable[[int], Mapping[str, Any]] = lambda _: {},
    ) -> list[Claim]:
        """Take free points, looking from point `first` on; none if there are none now.

        Args:
            params: for each point its values and their Optuna distributions; None: they are suggested later.
            first: where to look first, different for each worker so that they do not all want the same.
            among: the points that may be taken; None: all.
            most: how many to take.
            about: attributes for the trial of a point.
        """
        holders = _holders(self._trials())
        points = range(self.num_points) if among is None else among
        free = (
            point
            for step in range(len(points))
            if self._standing(holders.get(point := points[(first + step) % len(points)])).state == "free"
        )
        won: list[Claim] = []
        while len(won) < most and (few := list(itertools.islice(free, most - len(won)))):
            wanted = []
            for point in few:
                holder = holders.get(point)
                attempt = 0 if holder is None else said_of(holder)["attempt"] + 1
                values, distributions = params[point] if params is not None else _inherited(holder)
                wanted.append((point, attempt, values, distributions, about(point)))
            won += self._take(wanted)
        return won

    def _take(
        self, wanted: Sequence[tuple[int, int, Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]]
    ) -> list[Claim]:
        """Claim these points and attempts; those claims stand that nobody else made before."""
        import optuna

        token = uuid.uuid4().hex
        for point, attempt, values, distributions, about in wanted:
            self.study.add_trial(
                optuna.create_trial(
                    state=optuna.trial.TrialState.RUNNING, params=dict(values), distributions=dict(distributions),
                    user_attrs={_CLAIM: {
                        "point": point, "attempt": attempt, "token": token,
                        "host": socket.gethostname(), "pid": os.getpid(), **about,
                    }},
                )
            )  # fmt: skip
        trials = self._trials()
        holders, won = _holders(trials), []
        for own in (trial for trial in trials if said_of(trial)["token"] == token):
            claim = Claim(self.study, own)
            if holders[claim.point].number == own.number:
                won.append(claim)
            else:
                claim._end("FAIL", superseded=True)
        return won

    def _trials(self) -> "list[optuna.trial.FrozenTrial]":
        with storage_errors(self._where):
            found = [trial for trial in self.study.get_trials(deepcopy=False) if "token" in said_of(trial)]
            for trial in found:
                if trial.number not in self._checked:
                    _check(trial, self._where, must=self._sealed)
                    if trial.state.is_finished():  # and is not read again
                        self._checked.add(trial.number)
            return found

    def _standing(self, trial: "optuna.trial.FrozenTrial | None") -> Standing:
        if trial is None:
            return Standing("free")
        name = trial.state.name
        if name == "RUNNING":
            return Standing("free" if self._abandoned(trial) else "running", trial)
        if name == "FAIL":
            return Standing("free" if said_of(trial).get("released") else "failed", trial)
        return Standing({"COMPLETE": "done", "PRUNED": "pruned"}[name], trial)

    def _abandoned(self, trial: "optuna.trial.FrozenTrial") -> bool:
        holder = said_of(trial)
        if holder["host"] == socket.gethostname() and not _exists(holder["pid"]):
            return True
        counter, since = self._seen.get(trial.number, (-1, 0.0))
        if holder.get("beat", 0) != counter:
            self._seen[trial.number] = (holder.get("beat", 0), time.monotonic())
            return False
        return time.monotonic() - since > GRACE_SECONDS


def _holders(trials: "list[optuna.trial.FrozenTrial]") -> "dict[int, optuna.trial.FrozenTrial]":
    """For each point the trial that stands for it: the first one of its last attempt."""
    holders: dict[int, optuna.trial.FrozenTrial] = {}
    for trial in sorted(trials, key=lambda trial: trial.number):
        said = said_of(trial)
        point = said["point"]
        if point not in holders or said["attempt"] > said_of(holders[point])["attempt"]:
            holders[point] = trial
    return holders


def open_storage(url: str) -> "optuna.storages.RDBStorage":
    """The storage behind a URL of Optuna, such as sqlite:///sweep.db or postgresql://host/name."""
    try:
        import optuna
    except ImportError:
        raise MissingExtraError("a sweep", "sweep") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    options = {"connect_args": {"timeout": 60, "factory": _Connection}} if url.startswith("sqlite") else {}
    for tries_left in (4, 3, 2, 1, 0):
        try:
            _check_database(url)
            storage = optuna.storages.RDBStorage(url, engine_kwargs=options)
            weakref.finalize(
                storage, storage.engine.dispose
            )  # SQLite puts its log into the file when the last one leaves
            return storage
        except Exception as error:
            if not tries_left:
                raise ConfigError(f"can't open the storage {url}: {str(error).splitlines()[0]}") from None
            time.sleep(0.3)  # two processes that make the same new database get into each other's way
    raise AssertionError


class _Connection(sqlite3.Connection):
    """A connection whose commits append to a log and need not wait for the disk: milliseconds, for each of thousands.

    What is committed outlives the process, however it ends. Should the machine itself stop, the file is whole as of an
    earlier commit, and the run folders know the rest.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.execute("PRAGMA journal_mode=WAL")
        self.execute("PRAGMA synchronous=NORMAL")


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
    attributes = said_of(trial)
    if trial.state.is_finished() and (must or KEY in attributes):
        value = trial.value if trial.state.name == "COMPLETE" else None
        if attributes.get(KEY) != _checksum(trial.state.name, value, trial.params, attributes):
            raise DataError(
                f"{where} is damaged or was edited: trial {trial.number} has the wrong checksum. Delete it, and the "
                "sweep takes what it needs from the run folders."
            )


def said_of(trial: "optuna.trial.FrozenTrial") -> dict[str, Any]:
    """What is said about a trial: by who claimed it, and by who ended it.

    Each is one attribute, since the storage takes as long for one as for many; version 0.1.0 had many.
    """
    own = dict(trial.user_attrs)
    claim, result = own.pop(_CLAIM, {}), own.pop(_RESULT, {})
    return {**own, **claim, **result}


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

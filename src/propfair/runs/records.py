"""What happened, as two tables: one value per (round, client, split, metric), and one per (round, metric)."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from torch import Tensor

from propfair.algorithms.base import ClientId
from propfair.core.aggregator import Outcome
from propfair.core.evaluation import Evaluation
from propfair.engines.session import Event
from propfair.runs import answers
from propfair.runs.columns import of_numbers, repeated

_TEXT = pa.dictionary(pa.int32(), pa.string())
CLIENT_SCHEMA = pa.schema(
    [
        ("run", _TEXT),
        ("round", pa.int32()),
        ("client", pa.int32()),
        ("split", _TEXT),
        ("metric", _TEXT),
        ("value", pa.float64()),
    ]
)
ROUND_SCHEMA = pa.schema([("run", _TEXT), ("round", pa.int32()), ("metric", _TEXT), ("value", pa.float64())])


ROW = np.dtype([("round", "<i4"), ("client", "<i4"), ("name", "<i4"), ("value", "<f8")])
WHOLE_ROUND = -1  # in the place of a client: the value is about the round


class Names:
    """What the numbers in the rows stand for, in the order of first appearance.

    Attributes:
        clients: split and metric of values of clients.
        rounds: metrics of whole rounds.
    """

    def __init__(self, clients: Iterable[tuple[str, str]] = (), rounds: Iterable[str] = ()) -> None:
        self.clients = {pair: code for code, pair in enumerate(clients)}
        self.rounds = {metric: code for code, metric in enumerate(rounds)}

    def of_client(self, split: str, metric: str) -> int:
        """The number of a value of clients."""
        return self.clients.setdefault((split, metric), len(self.clients))

    def of_round(self, metric: str) -> int:
        """The number of a value of whole rounds."""
        return self.rounds.setdefault(metric, len(self.rounds))

    def copy(self) -> "Names":
        """Later names are added to the copy alone."""
        return Names(self.clients, self.rounds)


class _Rows(NamedTuple):
    """One metric of several clients; made a table only when it is asked for, since rounds may take milliseconds."""

    round: int
    clients: NDArray[np.int32]
    split: str
    metric: str
    values: NDArray[np.float64]


class Records:
    """Collects the rows of a run. Values that are nan say nothing and are left out.

    Splits are train, validation and test for measured models, and `round` for what a round did to a client:
    `weight`, `received_loss`, `dropped`, the kinds of engine events, and whatever the algorithm observes. The last
    model's answers to the test examples are in `answers`.
    """

    def __init__(self, run: str) -> None:
        self.run = run
        self._clients: list[_Rows] = []
        self._rounds: list[tuple[int, str, float]] = []

    def add_outcome(self, outcome: Outcome) -> None:
        """What a round did: to each of its clients, and as a whole."""
        number, clients = outcome.round, outcome.clients
        self._add(number, clients, "round", "weight", outcome.weights)
        self._add(number, clients, "round", "received_loss", outcome.loss)
        self._add(number, outcome.dropped, "round", "dropped", np.ones(len(outcome.dropped)))
        for name, values in outcome.reports.observed.items():
            self._add(number, outcome.reports.clients, "round", name, values)
        self._rounds.extend((number, name, value) for name, value in outcome.diagnostics.items())

    def add_event(self, event: Event) -> None:
        """The clients that an engine had to run again or to leave out."""
        self._add(event.round, event.clients, "round", event.kind, np.ones(len(event.clients)))

    def add_evaluation(self, number: int, split: str, evaluation: Evaluation, prefix: str = "") -> None:
        """What a model does for every client."""
        clients = range(len(evaluation.loss))
        for name, values in evaluation.values().items():
            self._add(number, clients, split, f"{prefix}{name}", values)

    def add_answers(self, number: int, split: str, evaluation: Evaluation) -> None:
        """Which examples a model gets right, if they are right or wrong; see `propfair.runs.answers`."""
        if evaluation.right is not None:
            for word, (clients, values) in enumerate(
                answers.pack(evaluation.right.numpy(), evaluation.num_examples.numpy())
            ):
                self._add(number, clients, answers.SPLIT, f"{split}/{word}", values)

    def forget_evaluation(self, number: int) -> None:
        """Of a round after which another model is handed out than the one that was measured."""
        self._clients = [rows for rows in self._clients if rows.round != number or rows.split == "round"]

    def _add(
        self,
        number: int,
        clients: Sequence[ClientId] | NDArray[np.int32],
        split: str,
        metric: str,
        values: Tensor | np.ndarray,
    ) -> None:
        column = values.double().numpy() if isinstance(values, Tensor) else np.asarray(values, dtype=np.float64)
        said = ~np.isnan(column)
        if said.any():
            self._clients.append(_Rows(number, np.asarray(clients, dtype=np.int32)[said], split, metric, column[said]))

    @property
    def clients(self) -> pa.Table:
        """run, round, client, split, metric, value."""
        lengths = [len(rows.values) for rows in self._clients]
        numbers, clients, splits, metrics, values = zip(*self._clients, strict=True) if lengths else ((),) * 5
        return pa.table(
            {
                "run": repeated([self.run], [sum(lengths)]),
                "round": of_numbers(np.repeat(np.array(numbers, dtype=np.int32), lengths), pa.int32()),
                "client": of_numbers(np.concatenate(clients) if lengths else [], pa.int32()),
                "split": repeated(splits, lengths),
                "metric": repeated(metrics, lengths),
                "value": of_numbers(np.concatenate(values) if lengths else [], pa.float64()),
            },
            schema=CLIENT_SCHEMA,
        )

    @property
    def diagnostics(self) -> pa.Table:
        """run, round, metric, value."""
        numbers, metrics, values = zip(*self._rounds, strict=True) if self._rounds else ((), (), ())
        return pa.table(
            {
                "run": repeated([self.run], [len(numbers)]),
                "round": of_numbers(numbers, pa.int32()),
                "metric": repeated(metrics),
                "value": of_numbers(values, pa.float64()),
            },
            schema=ROUND_SCHEMA,
        )

    def rows(self, names: Names) -> NDArray[np.void]:
        """All of it as rows of numbers, [n] of `ROW`: first the clients', then the rounds'. New names join `names`."""
        lengths = [len(rows.values) for rows in self._clients]
        made = np.empty(sum(lengths) + len(self._rounds), ROW)
        of_clients, of_rounds = made[: sum(lengths)], made[sum(lengths) :]
        if lengths:
            of_clients["round"] = np.repeat([rows.round for rows in self._clients], lengths)
            of_clients["client"] = np.concatenate([rows.clients for rows in self._clients])
            of_clients["name"] = np.repeat([names.of_client(one.split, one.metric) for one in self._clients], lengths)
            of_clients["value"] = np.concatenate([rows.values for rows in self._clients])
        of_rounds["client"] = WHOLE_ROUND
        for place, (number, metric, value) in enumerate(self._rounds):
            of_rounds[place] = (number, WHOLE_ROUND, names.of_round(metric), value)
        return made

    def clear(self) -> None:
        """Forget the rows, once they are written."""
        self._clients.clear()
        self._rounds.clear()

"""Reads what clients send back. Nothing in a reply is believed before it is checked: clients may be broken or hostile.

Whatever is wrong with a reply is a `RefusedError` that says what; the strategy then goes on without that client.
"""

import io
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from numpy.lib import format as npy
from torch import Tensor

from propfair.algorithms.base import ClientId
from propfair.core.messages import Report
from propfair.core.params import all_finite
from propfair.flower.limits import Limits
from propfair.flower.messages import KEY, NAME, NUM_EXAMPLES

_MAX_CLIENTS = 10**7
_MAX_STEPS = 10**9
_LONGEST_NAME = 80


class RefusedError(Exception):
    """A reply that is not believed, and why."""


class Answer(NamedTuple):
    """What a client says when it is asked who it is."""

    client: ClientId
    num_clients: int
    num_examples: int


def read_place(metrics: MetricRecord) -> tuple[ClientId, int]:
    """Which client it is, of how many."""
    num_clients = _whole(metrics, f"{KEY}.num-clients", 1, _MAX_CLIENTS)
    return _whole(metrics, f"{KEY}.client", 0, num_clients - 1), num_clients


def read_name(content: RecordDict) -> str | None:
    """What it calls itself, if it does: printable, and not longer than a table can bear."""
    for record in content.config_records.values():
        name = record.get(NAME)
        if isinstance(name, str) and (shown := "".join(filter(str.isprintable, name)).strip()[:_LONGEST_NAME]):
            return shown
    return None


def read_num_examples(metrics: MetricRecord, limits: Limits, least: int = 1) -> int:
    """How much data it has."""
    return _whole(metrics, NUM_EXAMPLES, least, limits.max_examples)


def only_metrics(content: RecordDict) -> MetricRecord:
    """The metrics of a reply: the record that Flower's own strategies look at, too."""
    if not content.metric_records:
        raise RefusedError("its reply has no metrics")
    found: MetricRecord = next(iter(content.metric_records.values()))
    return found


def read_arrays(content: RecordDict, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The arrays of a reply, which must have the names and shapes of the model's state dict `like`."""
    if len(content.array_records) != 1:
        raise RefusedError(f"its reply has {len(content.array_records)} records of arrays; one was expected")
    record: ArrayRecord = next(iter(content.array_records.values()))
    missing, extra = [name for name in like if name not in record], [name for name in record if name not in like]
    if missing or extra:
        what = f"no array {missing[0]!r}" if missing else f"an array {_short(extra[0])!r} that the model has not"
        raise RefusedError(f"its reply has {what}")
    return {name: _read_array(name, record[name], wanted) for name, wanted in like.items()}


def _read_array(name: str, array: Array, like: Tensor) -> Tensor:
    """One array. The header is looked at first: what it claims is not allocated unless that many bytes are there."""
    file = io.BytesIO(array.data)
    try:
        header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[npy.read_magic(file)]
        shape, by_columns, dtype = header(file)
    except Exception:
        # numpy parses a text here, and raises whatever comes up.
        raise RefusedError(f"the array {name!r} can't be read") from None
    if dtype.kind not in "fiub":
        raise RefusedError(f"the array {name!r} must hold numbers; got {dtype}")
    if tuple(shape) != tuple(like.shape):
        raise RefusedError(f"the array {name!r} must have shape {list(like.shape)}; got {_short(str(list(shape)))}")
    start, count = file.tell(), math.prod(shape)
    if len(array.data) - start != count * dtype.itemsize:
        raise RefusedError(
            f"the array {name!r} must have {count * dtype.itemsize} bytes; got {len(array.data) - start}"
        )
    flat = np.frombuffer(array.data, dtype, offset=start).astype(dtype.newbyteorder("="))
    values = torch.from_numpy(np.ascontiguousarray(flat.reshape(shape, order="F" if by_columns else "C")))
    if values.is_floating_point() and not like.is_floating_point() and not all_finite(values):
        raise RefusedError(f"the counts in {name!r} are not finite")
    if name.endswith("running_var") and bool((values < 0).any()):
        raise RefusedError(f"the variances in {name!r} are negative")
    return values


def read_report(client: ClientId, metrics: MetricRecord, observed: Iterable[str], limits: Limits) -> Report:
    """What a client tells of its training; the server measures the update itself.

    `observed` are the names of what the algorithm has clients watch: the rule looks at them, so all must be there.
    """
    watched = {name: _number(metrics, f"{KEY}.observed.{name}") for name in observed}
    losses = [_number(metrics, f"{KEY}.{name}-loss") for name in ("first", "running", "full")]
    for value in (*watched.values(), *losses):
        if math.isfinite(value) and abs(value) > limits.max_loss:
            raise RefusedError(
                f"it reports a loss of {value:.3g}, and more than {limits.max_loss:.3g} is not plausible"
            )
    if limits.loss_cap is not None:
        cap = limits.loss_cap
        losses = [value if math.isnan(value) else min(value, cap) for value in losses]
        watched |= {name: min(value, cap) for name, value in watched.items() if name == "loss"}
    first_loss, running_loss, full_loss = losses
    return Report(
        client=client,
        num_steps=_whole(metrics, f"{KEY}.num-steps", 1, _MAX_STEPS),
        finite=all(map(math.isfinite, watched.values())),
        norm2=math.nan,
        first_loss=first_loss,
        running_loss=running_loss,
        observed=watched,
        full_loss=full_loss,
    )


def own_numbers(metrics: MetricRecord) -> dict[str, float]:
    """The client's own single numbers by name, without ours; those that are not finite say nothing and are left out."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if not isinstance(value, list)
        and name != NUM_EXAMPLES
        and not name.startswith(f"{KEY}.")
        and math.isfinite(value)
    }


def _number(metrics: MetricRecord, name: str) -> float:
    value = metrics.get(name)
    if value is None:
        raise RefusedError(f"its reply does not say {name!r}: fair_mod must be the first mod of its app")
    if isinstance(value, list):
        raise RefusedError(f"{name!r} must be one number; got a list of {len(value)}")
    return float(value)


def _whole(metrics: MetricRecord, name: str, low: int, high: int) -> int:
    value = _number(metrics, name)
    if not math.isfinite(value) or value != int(value) or not low <= value <= high:
        raise RefusedError(f"{name!r} must be a whole number from {low} to {high}; got {value:.6g}")
    return int(value)


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}..."

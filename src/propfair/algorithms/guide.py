"""Which algorithm for me: what each optimises, needs and costs, collected from the classes themselves."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from propfair.algorithms.base import ALGORITHMS, Advice, Algorithm, Needs
from propfair.algorithms.over import Over
from propfair.errors import ConfigError

COLUMNS = {
    "optimises": "optimises",
    "sees": "server sees",
    "cost": "cost of a round",
    "tune": "what needs tuning",
    "epochs": "many local steps",
    "participation": "partial participation",
    "reference": "reference",
}  # of an entry, in order, with their titles


@dataclass(frozen=True)
class Entry:
    """What somebody who chooses wants to know about one algorithm."""

    name: str
    summary: str  # the first line of its doc-string
    optimises: str
    sees: str  # what the server must see of a single client
    cost: str  # beside local training
    tune: str
    epochs: str
    participation: str
    reference: str
    wrapper: bool  # goes around another algorithm


def entries() -> list[Entry]:
    """All registered algorithms that say what they are for, by name."""
    return [entry for name in ALGORITHMS.names() if (entry := entry_of(name)) is not None]


def entry_of(name: str) -> Entry | None:
    """One of them; None for an algorithm of another package that has no advice."""
    kind = ALGORITHMS.get(name)
    advice: Advice | None = kind.advice
    if advice is None:
        return None
    algorithm, wrapper = example_of(name), issubclass(kind, Over)
    text = kind.__doc__ or ""
    return Entry(
        name=name, summary=text.strip().splitlines()[0], optimises=advice.optimises, tune=advice.tune,
        epochs=advice.epochs, participation=advice.participation, reference=_reference(text), wrapper=wrapper,
        sees=algorithm.privacy if not wrapper or algorithm.privacy == "updates" else "what `over` needs",
        cost=_cost(algorithm, wrapper),
    )  # fmt: skip


def example_of(name: str) -> Algorithm:
    """The algorithm with its defaults; with those of its presets where some option has none."""
    for options in ({}, *({"preset": preset} for preset in sorted(ALGORITHMS.get(name).presets))):
        try:
            return ALGORITHMS.make(name, options)
        except ConfigError as error:
            refused = error
    raise refused


def markdown(chosen: Sequence[Entry]) -> str:
    """A table of these entries for a page."""
    rows = [["algorithm", *COLUMNS.values()], ["---"] * (1 + len(COLUMNS))]
    rows += [[f"`{entry.name}`", *(getattr(entry, column) for column in COLUMNS)] for entry in chosen]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cost(algorithm: Algorithm, wrapper: bool) -> str:
    """What a round costs beside local training."""
    parts = []
    if algorithm.needs & Needs.ANY_LOSS:
        parts.append("a pass over the training data for the losses")
    if algorithm.needs & Needs.GRAM:
        parts.append("all updates of the round kept, with their inner products")
    if algorithm.personal is not None:
        parts.append("a second model trained on each client")
    if algorithm.drift is not None and algorithm.drift.variates != "none":
        parts.append("all updates of the round kept, and a vector as large as the model for each client")
    if wrapper:
        parts.append("that of `over`")
    text = "; ".join(parts) or "nothing"
    return f"{text[0].upper()}{text[1:]}."


def _reference(text: str) -> str:
    """The first reference of a doc-string, on one line."""
    first = text.split("References:")[1].strip("\n").split("\n        ")
    lines = [line.strip() for line in first if line.strip()]
    end = next((k for k, line in enumerate(lines) if re.search(r"\d{4}(, of which.*)?\.$", line)), len(lines) - 1)
    return " ".join(lines[: end + 1])

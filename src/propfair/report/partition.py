"""Who holds what, as a table and as a picture."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from propfair.federation.federation import SPLITS, Federation
from propfair.report.drawing import all_letters, client_names, new_figure, save_figure

MAX_DRAWN = 500  # clients; of more, so many are drawn, evenly over the order of size
MAX_NAMED = 40


@dataclass(frozen=True)
class PartitionTable:
    """The numbers behind a partition.

    Attributes:
        names: of the clients.
        sizes: [n, 3], examples for train, validation and test.
        classes: [n, classes], examples of each class in all three; no columns for real-valued targets.
        note: how it came about.
    """

    names: tuple[str, ...]
    sizes: NDArray[np.int64]
    classes: NDArray[np.int64]
    note: str

    def rows(self) -> list[dict[str, Any]]:
        """One dict per client: its name, the sizes, the number of classes and the examples of each class."""
        return [
            {
                "client": name,
                **dict(zip(SPLITS, sizes.tolist(), strict=True)),
                **({"num_classes": int((classes > 0).sum())} if len(classes) else {}),
                **{f"class_{k}": count for k, count in enumerate(classes.tolist())},
            }
            for name, sizes, classes in zip(self.names, self.sizes, self.classes, strict=True)
        ]

    def summary(self) -> dict[str, Any]:
        """The partition in a few numbers.

        `skew` is the mean over clients of the total-variation distance between a client's mixture of classes and that
        of all: 0 for equal mixtures, towards 1 for clients of one class each.
        """
        totals = self.sizes.sum(1)
        numbers: dict[str, Any] = {
            "clients": len(self.names),
            **{split: int(count) for split, count in zip(SPLITS, self.sizes.sum(0), strict=True)},
            "smallest": int(totals.min()),
            "median": float(np.median(totals)),
            "largest": int(totals.max()),
        }
        if self.classes.size:
            mixture = self.classes / np.maximum(totals, 1)[:, None]
            overall = self.classes.sum(0) / totals.sum()
            numbers["classes_per_client"] = float((self.classes > 0).sum(1).mean())
            numbers["skew"] = float(0.5 * np.abs(mixture - overall).sum(1).mean())
        return numbers


def describe_partition(federation: Federation) -> PartitionTable:
    """Count what each client of a federation holds."""
    num_classes = federation.examples.num_classes
    sizes = np.stack([federation.split(split).lengths.numpy() for split in SPLITS], axis=1)
    classes = np.zeros((federation.num_clients, num_classes), dtype=np.int64)
    if num_classes:
        classes = sum((federation.label_counts(split).numpy() for split in SPLITS), classes)
    return PartitionTable(federation.names, sizes, classes, federation.note)


@all_letters()
def draw_partition(federation: Federation, path: Path, title: str = "") -> None:
    """Write a picture (PNG, PDF or SVG, by the ending): clients x classes, and how much each client has."""
    table = describe_partition(federation)
    number, num_classes = table.classes.shape
    shown = np.arange(number)
    if number > MAX_DRAWN:
        by_size = np.argsort(-table.sizes.sum(1), kind="stable")
        shown = by_size[np.linspace(0, number - 1, MAX_DRAWN).round().astype(np.int64)]
    height = min(12.0, max(3.2, 1.4 + 0.28 * len(shown)))
    figure = new_figure(10.5, height)
    if num_classes:
        mixture_axes, size_axes = figure.subplots(1, 2, sharey=True, width_ratios=(2.2, 1))
        share = table.classes[shown] / np.maximum(table.classes[shown].sum(1, keepdims=True), 1)
        present = np.ma.masked_equal(share, 0)  # white: the client has none of the class
        image = mixture_axes.imshow(present, aspect="auto", cmap="magma_r", vmin=0, interpolation="nearest")
        figure.colorbar(image, ax=mixture_axes, label="share of the client's examples", pad=0.01)
        mixture_axes.set(xlabel="class", ylabel="client")
        if num_classes <= 20:
            mixture_axes.set_xticks(range(num_classes))
        first_axes = mixture_axes
    else:
        first_axes = size_axes = figure.subplots()
        size_axes.set(ylabel="client")
    left = np.zeros(len(shown))
    for position, (split, colour) in enumerate(zip(SPLITS, ("#0072B2", "#E69F00", "#56B4E9"), strict=True)):
        counts = table.sizes[shown, position]
        if counts.any():
            size_axes.barh(np.arange(len(shown)), counts, left=left, height=0.8, color=colour, label=split)
            left += counts
    size_axes.set(xlabel="examples")
    size_axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False, fontsize=9)
    size_axes.spines[["top", "right"]].set_visible(False)
    if len(shown) <= MAX_NAMED:
        names = client_names(table.names)
        first_axes.set_yticks(range(len(shown)), [names[client] for client in shown], fontsize=8)
    elif number > MAX_DRAWN:
        first_axes.set_yticks([])
        first_axes.set_ylabel(f"{MAX_DRAWN} of {number:,} clients, the largest first")
    if not num_classes:
        size_axes.invert_yaxis()
    save_figure(figure, path, title)

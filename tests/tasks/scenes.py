"""A small learning problem of each kind, as users bring them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, Subset

from propfair.data.base import map_tensors
from propfair.federation.federation import Split
from tests.builders import seeded

NUM_CLIENTS, TESTED = 3, 6


class TwoTowers(nn.Module):
    """Takes two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(2, 3)

    def forward(self, wide: Tensor, narrow: Tensor) -> Tensor:
        output: Tensor = self.left(wide) + self.right(narrow)
        return output


class Tagger(nn.Module):
    """A label for each token; classes come last."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(10, 6), nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        output: Tensor = self.head(self.embedding(tokens))
        return output


class Sentences(Dataset[tuple[Tensor, Tensor]]):
    """Sequences of unequal length, and a label for each token: its number modulo three."""

    def __init__(self, seed: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        lengths = torch.randint(2, 8, (20,), generator=rng).tolist()
        self._items = [torch.randint(10, (length,), generator=rng) for length in lengths]

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        return self._items[place], self._items[place] % 3


def padded(items: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    tokens, labels = zip(*items, strict=True)
    return pad_sequence(list(tokens), batch_first=True), pad_sequence(list(labels), True, -100)


class OneLogit(nn.Module):
    """[B] rather than [B, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(x).squeeze(1)
        return output


@dataclass(frozen=True)
class Scene:
    """A problem: how to make the model, one client's data from a seed, and what else `train` is told."""

    model: Callable[[], nn.Module]
    client: Callable[[int], Any]
    task: str
    options: dict[str, Any] = field(default_factory=dict)
    collate: Any = None
    stackable: bool = True

    def clients(self) -> dict[str, Any]:
        return {name: self.client(seed) for seed, name in enumerate(("ann", "bob", "cid"))}

    def split_clients(self) -> list[dict[Split, Any]]:
        """Each with its test data, so that nothing is left to chance."""
        return [_halves(client) for client in self.clients().values()]

    def module(self) -> nn.Module:
        return seeded(self.model, 1)


def _halves(client: Any) -> dict[Split, Any]:
    if isinstance(client, Dataset):
        count = len(client)  # type: ignore[arg-type]
        return {"train": Subset(client, range(count - TESTED)), "test": Subset(client, range(count - TESTED, count))}
    x, y = client
    return {
        "train": (map_tensors(lambda rows: rows[:-TESTED], x), y[:-TESTED]),
        "test": (map_tensors(lambda rows: rows[-TESTED:], x), y[-TESTED:]),
    }


def _x(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _single(seed: int) -> Any:
    x = _x(seed, 30, 4)
    return x, x[:, :3].argmax(1)


def _binary(seed: int) -> Any:
    x = _x(seed, 30, 4)
    return x, (x.sum(1) > 0).float()


def _multi_label(seed: int) -> Any:
    x = _x(seed, 30, 4)
    return x, (x[:, :3] > 0).float()


def coefficients() -> Tensor:
    return torch.tensor([[1.0, -2.0, 0.5, 3.0], [0.0, 1.0, 1.0, -1.0]])


def _regression(seed: int) -> Any:
    x = _x(seed, 30, 4)
    return x, x @ coefficients()[0] + 0.25


def _several_outputs(seed: int) -> Any:
    x = _x(seed, 30, 4)
    return x, x @ coefficients().T


def _segmentation(seed: int) -> Any:
    x = _x(seed, 16, 1, 6, 6)
    return x, (x[:, 0] > 0).long() + (x[:, 0] > 1).long()


def _several_inputs(seed: int) -> Any:
    wide, narrow = _x(seed, 30, 4), _x(seed + 9, 30, 2)
    return {"wide": wide, "narrow": narrow}, (wide[:, :3]).argmax(1)


def _pair_of_inputs(seed: int) -> Any:
    x, y = _several_inputs(seed)
    return (x["wide"], x["narrow"]), y


SCENES: dict[str, Scene] = {
    "single-label": Scene(lambda: nn.Linear(4, 3), _single, "single-label"),
    "binary": Scene(OneLogit, _binary, "binary", {"loss": nn.BCEWithLogitsLoss()}),
    "multi-label": Scene(lambda: nn.Linear(4, 3), _multi_label, "multi-label", {"loss": nn.BCEWithLogitsLoss()}),
    "regression": Scene(OneLogit, _regression, "regression", {"loss": nn.MSELoss()}),
    "several outputs": Scene(lambda: nn.Linear(4, 2), _several_outputs, "regression", {"loss": nn.MSELoss()}),
    "segmentation": Scene(lambda: nn.Conv2d(1, 3, 3, padding=1), _segmentation, "per-position"),
    "dict of inputs": Scene(TwoTowers, _several_inputs, "single-label", stackable=False),
    "tuple of inputs": Scene(TwoTowers, _pair_of_inputs, "single-label", stackable=False),
    "tokens": Scene(Tagger, Sentences, "per-position", {"num_classes": 3}, collate=padded, stackable=False),
}

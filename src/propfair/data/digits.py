"""The 1,797 handwritten digits that come with scikit-learn: real data without a download."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from propfair.data.base import SOURCES, ArrayExamples, Protocol, Source
from propfair.errors import MissingExtraError


@SOURCES.register("digits")
@dataclass(frozen=True)
class Digits(Source):
    """Handwritten digits, 8x8 grey, 10 classes, 1,797 images (UCI, Alpaydin and Kaynak, 1998)."""

    home = "bundled with scikit-learn"

    @property
    def protocol(self) -> Protocol:
        return Protocol(("dirichlet", {"beta": 0.5, "min_samples": 30}), 10, {"test": 0.2}, model="mlp")

    def load(self, folder: Path | None = None) -> ArrayExamples:
        """Read the images from the installed scikit-learn, without importing it: that takes a second or two."""
        found = importlib.util.find_spec("sklearn")
        if found is None or found.origin is None:
            raise MissingExtraError("data set 'digits'", "data")
        table = np.loadtxt(Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
        x = torch.from_numpy(table[:, :-1]).to(torch.float32).div_(16).view(-1, 1, 8, 8)  # pixels are 0 .. 16
        return ArrayExamples(x, torch.from_numpy(table[:, -1]).to(torch.int64), num_classes=10)

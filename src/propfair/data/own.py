"""One's own tables and images from the command line: `propfair run data=own data.path=patients.csv data.target=ill`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from propfair.data.base import SOURCES, ArrayExamples, Examples, Protocol, Source
from propfair.data.folders import ImageFolder, class_names
from propfair.data.lazy import LazyExamples
from propfair.data.tables import SUFFIXES, Encoding, codes_of, read_table_file
from propfair.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

_CLIENT = "client"  # the usual name of the column that says whose a row is


@SOURCES.register("own")
@dataclass(frozen=True, kw_only=True)
class Own(Source):
    """A table with a column for clients, a folder with a table for each client, or a folder of images for each client.

    Text columns become categories, text targets class labels; whole numbers are class labels and real numbers
    regression, unless `task` says otherwise. Images lie in CLIENT/CLASS/*.png and are read when they are needed.

    Args:
        path: a .csv or .parquet file, a folder of them, or a folder with a folder for each client.
        target: the column of targets, or several with commas between; "": label, labels, target or y.
        client: the column that says whose a row is; "": the column "client", if there is one.
        inputs: columns of inputs with commas between; "": all others.
        standardize: numbers of tables to mean 0 and standard deviation 1, over all clients.
        image_size: pixels of each side of images after resizing; None: they must all have one size.
    """

    path: str = ""
    target: str = ""
    client: str = ""
    inputs: str = ""
    standardize: bool = True
    image_size: int | None = None

    @property
    def protocol(self) -> Protocol:
        return Protocol(partition=("natural", {}), num_clients=None, split={"order": "shuffled"}, model="mlp")

    def load(self, folder: Path | None = None) -> Examples:
        if not self.path:
            raise DataError("data=own needs data.path: a .csv or .parquet file, or a folder")
        path = Path(self.path).expanduser()
        if path.is_file():
            table = read_table_file(path)
            name = self.client or (_CLIENT if _CLIENT in table.column_names else "")
            return self._one_table(table, name, str(path))
        if not path.is_dir():
            raise DataError(f"data.path: there is no file or folder {path}")
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
        if files:
            return self._tables([read_table_file(file) for file in files], [file.stem for file in files])
        return self._images(sorted(place for place in path.iterdir() if place.is_dir()), path)

    def _one_table(self, table: "pa.Table", client: str, where: str) -> Examples:
        if client and client in (_listed(self.target) or ()):
            raise DataError(f"data.target and data.client are the same column of {where}, {client!r}: whose a row is")
        encoding = Encoding.of(
            [table], [where], inputs=_listed(self.inputs), target=_listed(self.target),
            leave_out=(client,) if client else (),
        )  # fmt: skip
        if not client:
            return self._examples(encoding.inputs_of(table, where), encoding.targets_of(table, where), encoding)
        if client not in table.column_names:
            raise DataError(
                f"{where} has no column {client!r}; it has: {', '.join(table.column_names)}. Set data.client."
            )
        owners = table[client].cast("string")
        if owners.null_count:
            raise DataError(f"{where}: column {client!r} has {owners.null_count} missing values: whose are these rows?")
        names = sorted(owners.unique().to_pylist())
        user = torch.from_numpy(codes_of(owners, names).to_numpy().copy())
        x, y = encoding.inputs_of(table, where), encoding.targets_of(table, where)
        return self._examples(x, y, encoding, user, names)

    def _tables(self, tables: list["pa.Table"], names: list[str]) -> Examples:
        encoding = Encoding.of(tables, names, inputs=_listed(self.inputs), target=_listed(self.target))
        user = torch.repeat_interleave(torch.arange(len(tables)), torch.tensor([len(table) for table in tables]))
        parts = [encoding.inputs_of(table, name) for table, name in zip(tables, names, strict=True)]
        if not all(isinstance(part, Tensor) for part in parts):
            raise DataError("several columns of arrays need a model with several inputs: train it from Python")
        y = torch.cat([encoding.targets_of(table, name) for table, name in zip(tables, names, strict=True)])
        return self._examples(torch.cat(parts), y, encoding, user, names)

    def _images(self, folders: list[Path], path: Path) -> Examples:
        if not folders:
            raise DataError(f"{path} has neither .csv nor .parquet files nor folders of clients")
        classes = class_names(folders)
        parts = [ImageFolder(folder, classes, self.image_size) for folder in folders]
        return LazyExamples(
            parts, labels=torch.cat([part.targets for part in parts]), num_classes=len(classes),
            user=torch.repeat_interleave(torch.arange(len(parts)), torch.tensor([len(part) for part in parts])),
            user_names=[folder.name for folder in folders],
        )  # fmt: skip

    def _examples(
        self, x: Tensor, y: Tensor, encoding: Encoding, user: Tensor | None = None, names: list[str] | None = None
    ) -> Examples:
        classes = 0 if y.is_floating_point() else len(encoding.classes) or int(y.max()) + 1
        if not y.is_floating_point() and int(y.min()) < 0:
            classes = 0  # whole numbers that are no labels
        if self.standardize and x.is_floating_point() and x.ndim == 2:
            x = _standardized(x)
        return ArrayExamples(
            x, y, num_classes=classes, user=None if user is None else user.to(torch.int32), user_names=names or ()
        )


def _listed(text: str) -> list[str] | None:
    return [name.strip() for name in text.split(",")] if text else None


def _standardized(x: Tensor) -> Tensor:
    """Columns of mean 0 and standard deviation 1; those that are 0 and 1, or constant, stay."""
    kept = ((x == 0) | (x == 1)).all(0) | (x == x[:1]).all(0)
    std, mean = torch.std_mean(x, dim=0, correction=0)
    return torch.where(kept, x, (x - mean) / torch.where(kept, torch.ones_like(std), std))

"""Clients from a function of the user: `propfair run data=package.module:function`."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from propfair.data.base import SOURCES, Examples, Protocol, Source
from propfair.errors import ConfigError, DataError
from propfair.registry import import_path


@dataclass(frozen=True)
class ImportedData(Source):
    """A function of the user, `package.module:function`, called with the options as keyword arguments.

    It gives the clients as `from_datasets` takes them, or a `Federation`; or `Examples`, to be dealt to clients.
    Nothing but a function that is written in Python is ever called.
    """

    path: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def protocol(self) -> Protocol:
        return Protocol(partition=("natural", {}), num_clients=None, split={"order": "shuffled"}, model="mlp")

    def call(self) -> Any:
        """What the function gives."""
        function = import_path(self.path, "data set")
        if not inspect.isfunction(function):
            raise ConfigError(
                f"data set {self.path!r} must be a function that gives the clients; it is a {type(function).__name__} "
                "and was not called."
            )
        try:
            return function(**self.options)
        except Exception as error:  # the user's own code, which may fail in any way
            raise ConfigError(
                f"data set {self.path!r} can't be called with {dict(self.options)}: {type(error).__name__}: {error}"
            ) from error

    def load(self, folder: Path | None = None) -> Examples:
        found = self.call()
        if not isinstance(found, Examples):
            raise DataError(f"{self.path} gives clients, and no examples that could be dealt to others")
        return found


def make_source(name: str, options: Mapping[str, Any], seed: int) -> Source:
    """The data set called `name`: a registered one, or a function of yours as `package.module:function`.

    One that draws its examples takes the seed.
    """
    if ":" in name:
        return ImportedData(name, dict(options))
    drawn = any(option.name == "seed" for option in SOURCES.options(name))
    return SOURCES.make(name, {**options, **({"seed": seed} if drawn else {})})

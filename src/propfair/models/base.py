"""The recipe of a network: options now, input shape and number of classes later."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import nn

from propfair.errors import ConfigError
from propfair.registry import Registry, import_class

Shape = tuple[int, ...]  # of one example, without the batch


class ModelSpec(ABC):
    """A named network: a frozen dataclass whose fields are its options. Subclasses register themselves."""

    name: ClassVar[str]

    @abstractmethod
    def build(self, input_shape: Shape, num_classes: int) -> nn.Module:
        """A new network; weights are drawn from torch's global generator, as in any torch module."""


MODELS: Registry[ModelSpec] = Registry("model", "propfair.models", "propfair.models")
register = MODELS.register


@dataclass(frozen=True)
class ImportedModel(ModelSpec):
    """A module of the user, `package.module:Name`, called with the options as keyword arguments.

    `Name` must be a class derived from `torch.nn.Module`: nothing else is ever called, for a path can name any function
    that Python can import. `input_shape` and `num_classes` are passed too if it has parameters of those names.
    """

    path: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def build(self, input_shape: Shape, num_classes: int) -> nn.Module:
        kind = import_class(self.path, "model", nn.Module, "torch.nn.Module")
        known = {"input_shape": input_shape, "num_classes": num_classes}
        try:
            takes = inspect.signature(kind).parameters
            arguments = {**{key: value for key, value in known.items() if key in takes}, **self.options}
            return kind(**arguments)
        except Exception as error:  # the user's own code, which may fail in any way
            raise ConfigError(
                f"model {self.path!r} can't be called with {dict(self.options)}: {type(error).__name__}: {error}"
            ) from error


def make_model(name: str, options: Mapping[str, Any] | None = None) -> ModelSpec:
    """The model called `name`: a registered one, or a module of yours as `package.module:ClassName`."""
    if ":" in name:
        return ImportedModel(name, dict(options or {}))
    return MODELS.make(name, options)

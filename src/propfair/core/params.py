"""A module as one flat vector: the only file that knows parameters, buffers and their dtypes."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from propfair.errors import ConfigError


class FlatModel:
    """A module whose trainable parameters are views into one vector, so that loading a global model is one copy.

    Buffers (BatchNorm's running statistics and counters) travel beside the parameters in a second vector. The server
    averages them by data share whatever the algorithm's weights are, because a running variance under damped or
    unnormalised weights could turn negative; counters are rounded back to integers. Frozen parameters stay as they are.

    Attributes:
        module: the user's module; its parameters now live in `params`.
        params: [P].
        trainable: the module's own parameters, views into `params`.
        shapes, sizes: theirs.
    """

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu") -> None:
        if any(nn.parameter.is_lazy(p) for p in module.parameters()):
            raise ConfigError("the model has lazy layers that are not initialised: run one batch through it first")
        self.module = module.to(device)
        self.trainable: list[Tensor] = [p for p in module.parameters() if p.requires_grad]
        if not self.trainable:
            raise ConfigError(f"the model {type(module).__name__} has no trainable parameters")
        dtypes = {p.dtype for p in self.trainable}
        if len(dtypes) > 1:
            raise ConfigError(f"all trainable parameters must have one dtype; got {sorted(map(str, dtypes))}")
        self.shapes, self.sizes = [p.shape for p in self.trainable], [p.numel() for p in self.trainable]
        self.live_in(torch.cat([p.detach().reshape(-1) for p in self.trainable]))
        self._buffers = list(module.buffers())
        self._training: bool | None = None

    def live_in(self, params: Tensor) -> None:
        """From now on the module's parameters are views into this vector [P], with the values that it has."""
        self.params = params
        for parameter, view in zip(self.trainable, torch.split(params, self.sizes), strict=True):
            parameter.data = view.view_as(parameter)

    @property
    def buffers(self) -> Tensor:
        """[B], a copy; empty for models without buffers."""
        if not self._buffers:
            return self.params.new_empty(0)
        return torch.cat([b.detach().reshape(-1).to(self.params.dtype) for b in self._buffers])

    def train(self, mode: bool = True) -> None:
        """`module.train`, which walks over all layers, only where the mode changes."""
        if mode is not self._training:
            self.module.train(mode)
            self._training = mode

    def load(self, params: Tensor, buffers: Tensor) -> None:
        """Put a global model into the module."""
        self.params.copy_(params)
        if self._buffers:
            for buffer, part in zip(
                self._buffers, torch.split(buffers, [b.numel() for b in self._buffers]), strict=True
            ):
                exact = part if buffer.is_floating_point() else part.round()
                buffer.copy_(exact.view_as(buffer))

    def state_dict(self, params: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        """The module's state dict for the given vectors, on the CPU, sharing no memory with them."""
        self.load(params, buffers)
        return {name: value.detach().cpu().clone() for name, value in self.module.state_dict().items()}

    def vectors(self, state: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The inverse of `state_dict`."""
        self.module.load_state_dict(dict(state))
        return self.params.clone(), self.buffers


def feed(module: Callable[..., Any], inputs: Any) -> Any:
    """The module's output: the items of a tuple are its arguments, those of a dict its named arguments."""
    if isinstance(inputs, Tensor):
        return module(inputs)
    return module(**inputs) if isinstance(inputs, Mapping) else module(*inputs)


def all_finite(tensor: Tensor) -> bool:
    """`isfinite().all()` in one pass over the memory."""
    if not tensor.numel():
        return True
    low, high = torch.aminmax(tensor)
    return bool(low > -torch.inf) and bool(high < torch.inf)

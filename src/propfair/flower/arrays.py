"""Arrays by name as a module, for models of which only a part travels: adapters."""

from collections.abc import Mapping

from torch import Tensor, nn


def module_of(arrays: Mapping[str, Tensor]) -> nn.Module:
    """A module whose state dict has these names; all of them are parameters.

    >>> import torch
    >>> list(module_of({"layer.0.lora_A": torch.ones(2, 3), "head.bias": torch.ones(1)}).state_dict())
    ['layer.0.lora_A', 'head.bias']
    """
    root = nn.Module()
    for name, values in arrays.items():
        *path, last = name.split(".")
        place = root
        for part in path:
            if part not in place._modules:
                place.add_module(part, nn.Module())
            place = place.get_submodule(part)
        place.register_parameter(last, nn.Parameter(values.detach().clone()))
    return root

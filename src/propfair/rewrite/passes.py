"""The pass over a module: which convolutions can be replaced, and the module with them replaced."""

import copy
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from propfair.rewrite.layers import Place, Size, replacement

Shape = tuple[int, ...]


@dataclass
class Rewritten:
    """The equal of a module for one input size.

    It is equal in exact arithmetic; in float32 the order of sums differs. A dead tap stays as it is only if a zero
    gradient means no change: true for SGD, with momentum too, and for Adam; false with weight decay and for optimisers
    that look at the norm of a layer (LARS, LAMB). There, use it only if `exact_with_weight_decay`.

    Attributes:
        module: its parameters have the names of the original ones, in the same order.
        changes: one line for each layer that was replaced, or why nothing was.
        num_dead: how many weights are not in `module` because they never change.
    """

    module: nn.Module
    changes: tuple[str, ...] = ()
    num_dead: int = 0
    _places: Mapping[str, Place] = field(default_factory=dict)
    _full: Mapping[str, Tensor] = field(default_factory=dict)  # the full form of weights with dead taps

    @property
    def exact_with_weight_decay(self) -> bool:
        """Whether every weight is still there to decay."""
        return self.num_dead == 0

    def export(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The original module's state dict for a state dict of `module`; dead taps have the values last loaded."""
        return {
            name: self._places[name].put(value, self._full.get(name)) if name in self._places else value
            for name, value in state.items()
        }

    def live(self, full: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state dict of `module` for a state dict of the original module."""
        return {name: self._places[name].take(value) if name in self._places else value for name, value in full.items()}

    def load(self, full: Mapping[str, Tensor]) -> None:
        """Load a state dict of the original module, dead taps too."""
        self.module.load_state_dict(self.live(full))
        self._full = {name: full[name].detach().clone() for name in self._full}


def rewrite(
    module: nn.Module,
    input_shape: Iterable[int],
    *,
    batch_size: int = 1,
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
) -> Rewritten:
    """An equal of `module` for inputs of one shape. `module` and torch's generators stay as they are.

    Replaced are `nn.Conv2d` layers with zero padding that see one input size:

    - one output pixel: a matrix product on the live inputs;
    - 3x3 on a 2x2 or 4x4 map with many channels: a few matrix products, see `layers.FewProducts`;
    - elsewhere: rows and columns of taps that never meet a pixel are cut off, and the padding with them.

    ReLU before a max-pool in an `nn.Sequential` changes place with it: the same function, the same gradients. Left
    alone are layers with other padding, hooks, parametrisations or shared weights, layers that see several sizes, and
    any module whose forward pass does not survive the change; then `changes` says why.

    Args:
        module: any module.
        input_shape: of one example, without the batch: `(3, 32, 32)`.
        batch_size: of training steps, if it is known: some forms pay for wide batches only. Any other size works too.
        dtype: of the inputs.
        channels_last: also lay out the other convolutions, and what flows between them, channels last. That is faster
            for many networks, mostly because of max-pooling.

    Example:
        >>> rewritten = rewrite(nn.Conv2d(8, 8, 3, padding=1), (8, 1, 1))
        >>> rewritten.module.weight.shape, rewritten.num_dead
        (torch.Size([8, 8, 1, 1]), 512)
        >>> rewritten.export(rewritten.module.state_dict())["weight"].shape
        torch.Size([8, 8, 3, 3])
    """
    shape = tuple(input_shape)
    if not any(type(m) is nn.Conv2d for m in module.modules()):
        return Rewritten(copy.deepcopy(module))
    try:
        sizes = _conv_sizes(module, shape, dtype)
        reasons: tuple[str, ...] = ()
        if channels_last:
            try:
                return _checked(module, _build(module, sizes, True, batch_size), shape, dtype)
            except _NotEqualError as error:
                reasons = (f"not channels last: {error}",)
        rewritten = _checked(module, _build(module, sizes, False, batch_size), shape, dtype)
        return replace(rewritten, changes=reasons + rewritten.changes)
    except _NotEqualError as error:
        return Rewritten(copy.deepcopy(module), (f"left alone: {error}",))


class _NotEqualError(Exception):
    """The module can't be run on the given shape, or its rewritten form gives something else."""


def _build(module: nn.Module, sizes: Mapping[str, Size], channels_last: bool, batch_size: int) -> Rewritten:
    """Replace what can be replaced in a copy of the module."""
    new = copy.deepcopy(module)
    changes: list[str] = []
    places: dict[str, Place] = {}
    full: dict[str, Tensor] = {}
    num_dead = 0
    for name, size in sizes.items():
        conv = new.get_submodule(name)
        assert isinstance(conv, nn.Conv2d)
        layer = replacement(conv, size, channels_last, batch_size)
        if layer is None:
            continue
        weight = f"{name}.weight" if name else "weight"
        places[weight] = layer.place
        dead = conv.weight.numel() - layer.weight.numel()
        num_dead += dead
        if dead:
            full[weight] = conv.weight.detach()
        kernel = "x".join(map(str, conv.kernel_size))
        changes.append(f"{weight}: {kernel} convolution -> {type(layer).__name__}, {dead:,} weights never change")
        if name:
            parent, _, last = name.rpartition(".")
            setattr(new.get_submodule(parent), last, layer)
        else:
            new = layer
    return Rewritten(new, (*changes, *_pool_first(new)), num_dead, places, full)


def _pool_first(module: nn.Module) -> list[str]:
    """Let ReLU and a max-pool that follows it in a Sequential change places.

    Both orders give the largest of a window and zero. If all inputs of a window are <= 0, no gradient passes in either
    order; else it goes to the first largest input in both.
    """
    changes = []
    for name, chain in module.named_modules():
        if type(chain) is not nn.Sequential:
            continue
        for at, (first, second) in enumerate(itertools.pairwise(list(chain))):
            if type(first) is not nn.ReLU or type(second) is not nn.MaxPool2d:
                continue
            if not (second.return_indices or _has_hooks(first) or _has_hooks(second)):
                chain[at], chain[at + 1] = second, first
                changes.append(f"{f'{name}.{at}' if name else at}: max-pool before ReLU")
    return changes


def _conv_sizes(module: nn.Module, shape: Shape, dtype: torch.dtype) -> dict[str, Size]:
    """The input size of each convolution that may be replaced, by name, in the order of the module."""
    owners = Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))
    names = Counter(id(m) for _, m in module.named_modules(remove_duplicate=False))
    able = [
        name
        for name, conv in module.named_modules()
        if type(conv) is nn.Conv2d
        and conv.padding_mode == "zeros"
        and names[id(conv)] == 1
        and isinstance(conv.weight, nn.Parameter)
        and all(owners[id(p)] == 1 for p in conv.parameters())
        and not _has_hooks(conv)
    ]
    try:
        seen = _watch(module, able, shape, dtype)
    except Exception as error:
        raise _NotEqualError(f"inputs [2, {', '.join(map(str, shape))}] do not fit: {_first_line(error)}") from None
    return {name: size for name, sizes in seen.items() if len(sizes) == 1 for size in sizes if size is not None}


def _watch(module: nn.Module, able: list[str], shape: Shape, dtype: torch.dtype) -> dict[str, set[Size | None]]:
    """The input sizes of the named layers in a training and in an evaluation pass; None for an input without batch.

    On real zeros: torch's kernels for shapes alone would import 80 MB of modules, in seconds.
    """
    spare = copy.deepcopy(module).to("cpu")
    seen: dict[str, set[Size | None]] = {name: set() for name in able}

    def look_at(name: str) -> Any:
        def look(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            seen[name].add((inputs[0].shape[2], inputs[0].shape[3]) if inputs[0].ndim == 4 else None)

        return look

    for name in able:
        spare.get_submodule(name).register_forward_pre_hook(look_at(name))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for train in (True, False):
            spare.train(train)
            spare(torch.zeros(2, *shape, dtype=dtype))
    return seen


def _checked(module: nn.Module, rewritten: Rewritten, shape: Shape, dtype: torch.dtype) -> Rewritten:
    """The rewritten module, after it has given the same output as the original on a batch of noise."""
    if not rewritten.changes:
        return rewritten
    x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    x = x.to(next(module.parameters()).device, dtype)
    outputs = []
    for candidate in (module, rewritten.module):
        spare = copy.deepcopy(candidate).eval()
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            try:
                outputs.append(list(_tensors(spare(x))))
            except Exception as error:
                raise _NotEqualError(_first_line(error)) from None
    for before, after in zip(*outputs, strict=True):
        if not torch.allclose(after, before, rtol=0, atol=1e-4 * float(before.abs().max()), equal_nan=True):
            raise _NotEqualError("the rewritten layers give another output")
    return rewritten


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        yield from _tensors(list(output.values()))
    elif isinstance(output, list | tuple):
        for item in output:
            yield from _tensors(item)


def _has_hooks(module: nn.Module) -> bool:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name) for name in hooks)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"

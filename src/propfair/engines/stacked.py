"""Gradients of many clients' models at once, from stacked parameters [C, ...] and batches [C, B, ...].

Batches are padded to one length; `weight` [C, B] is 1 / (number of real examples) for those and 0 for padding.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from propfair.algorithms.base import Algorithm, Order
from propfair.client import LossFunction, cross_entropy
from propfair.params import FlatModel

CALLS_BEFORE_RECORDING = 25
FEW_CLASSES = 128  # up to here one-hot labels are cheaper than looking up one score in each row


class StackedBatch(NamedTuple):
    """One step's batch of each client."""

    x: Tensor  # [C, B, ...]
    y: Tensor  # [C, B, ...]
    weight: Tensor  # [C, B]
    lr_scale: Tensor  # [C]
    baseline: Tensor  # [C]

    def first(self, count: int) -> "StackedBatch":
        """Only the first clients."""
        return StackedBatch(*(tensor[:count] for tensor in self))


class Goal:
    """What clients descend: lr_scale times the transform of the batch loss, or times the batch loss itself."""

    def __init__(self, algorithm: Algorithm, transformed: bool = True) -> None:
        kind = type(algorithm)
        self._algorithm = algorithm
        self._transformed = transformed and kind.objective is not Algorithm.objective
        self._is_mean = kind.batch_loss is Algorithm.batch_loss

    def __call__(self, losses: Tensor, weight: Tensor, lr_scale: Any, baseline: Any) -> tuple[Tensor, Tensor]:
        """The goal and the batch loss of one client, from the losses [B] of its examples."""
        batch_loss = self._algorithm.batch_loss(losses, weight)
        return self._goal(batch_loss, lr_scale, baseline), batch_loss

    def pull(self, losses: Tensor, weight: Tensor, lr_scale: Tensor, baseline: Tensor) -> tuple[Tensor, Tensor]:
        """From the losses [C, B] of stacked clients: the derivatives of the goals [C, B], and the batch losses [C]."""
        if self._is_mean and not self._transformed:
            return weight * lr_scale.unsqueeze(1), (losses * weight).sum(1)
        with torch.enable_grad():
            losses.requires_grad_()
            mean = (losses * weight).sum(1) if self._is_mean else vmap(self._algorithm.batch_loss)(losses, weight)
            (pull,) = torch.autograd.grad(self._goal(mean, lr_scale, baseline).sum(), losses)
        return pull, mean.detach()

    def _goal(self, batch_loss: Tensor, lr_scale: Any, baseline: Any) -> Tensor:
        if self._transformed:
            batch_loss = self._algorithm.objective(batch_loss, Order(lr_scale, baseline))
        goal: Tensor = lr_scale * batch_loss
        return goal


class Gradient(Protocol):
    """Gradients of the goals of stacked clients.

    Attributes:
        fixed_shapes: a new number of clients takes time to get ready for.
    """

    fixed_shapes: bool

    def __call__(self, params: Sequence[Tensor], batch: StackedBatch) -> tuple[Sequence[Tensor], Tensor]:
        """A gradient for each of the stacked parameters, and the batch losses [C]."""

    def get_ready(self, params: Sequence[Tensor], batch: StackedBatch) -> None:
        """Prepare for inputs of these shapes."""


class Recorder:
    """A function of tensors that is recorded once it was called a few times with the same shapes, and then replayed.

    What is replayed are the operations on stacked tensors themselves: neither vmap nor autograd runs again, which
    takes half the time. Recording takes a tenth of a second.
    """

    def __init__(self, function: Callable[..., Sequence[Tensor]]) -> None:
        self._function = function
        self._calls: Counter[Any] = Counter()
        self._recorded: dict[Any, Callable[..., Sequence[Tensor]]] = {}

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        key = _shapes(inputs)
        self._calls[key] += 1
        if self._calls[key] == CALLS_BEFORE_RECORDING:
            self.record(*inputs)
        with torch.no_grad():
            return self._recorded.get(key, self._function)(*inputs)

    def record(self, *inputs: Tensor) -> None:
        """Record the function for inputs of these shapes."""
        if _shapes(inputs) not in self._recorded:
            recording = make_fx(self._function)(*inputs)
            recording.graph.eliminate_dead_code()
            recording.recompile()
            self._recorded[_shapes(inputs)] = recording


class AnyModule:
    """Gradients of any module that torch.func can batch."""

    fixed_shapes = True

    def __init__(self, model: FlatModel, loss: LossFunction, goal: Goal) -> None:
        module = model.module
        names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
        loss = quick_cross_entropy if loss is cross_entropy else loss

        def objective(params: Sequence[Tensor], x: Tensor, y: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
            return goal(loss(functional_call(module, dict(zip(names, params, strict=True)), (x,)), y), *rest)

        def gradient(*inputs: Tensor) -> list[Tensor]:
            params, batch = inputs[: len(names)], inputs[len(names) :]
            gradients, losses = vmap(grad(objective, has_aux=True), randomness="error")(params, *batch)
            return [*gradients, losses]

        self._gradient = Recorder(gradient)

    def __call__(self, params: Sequence[Tensor], batch: StackedBatch) -> tuple[Sequence[Tensor], Tensor]:
        *gradients, losses = self._gradient(*params, *batch)
        return gradients, losses

    def get_ready(self, params: Sequence[Tensor], batch: StackedBatch) -> None:
        self._gradient.record(*params, *batch)


class LinearLayers:
    """Closed-form gradients of linear layers with ReLU between them under cross-entropy."""

    fixed_shapes = False

    def __init__(self, layers: list["Layer"], goal: Goal) -> None:
        self._layers, self._goal = layers, goal

    def __call__(self, params: Sequence[Tensor], batch: StackedBatch) -> tuple[Sequence[Tensor], Tensor]:
        inputs = [batch.x.flatten(2)]
        for layer in self._layers:
            out = layer.forward(params, inputs[-1])
            inputs.append(out.relu_() if layer.relu else out)
        scores, label = inputs.pop(), batch.y.unsqueeze(-1)
        scores.sub_(scores.amax(-1, keepdim=True))
        chosen = scores.gather(-1, label).squeeze(-1)
        total = scores.exp_().sum(-1)
        pull, losses = self._goal.pull(total.log() - chosen, *batch[2:])
        back = scores.mul_((pull / total).unsqueeze(-1)).scatter_add_(-1, label, -pull.unsqueeze(-1))
        gradients: list[Tensor] = [back] * len(params)
        for number in reversed(range(len(self._layers))):
            layer, given = self._layers[number], inputs[number]
            gradients[layer.weight] = torch.bmm(back.mT, given)
            if layer.bias is not None:
                gradients[layer.bias] = back.sum(1)
            if number:
                back = torch.bmm(back, params[layer.weight])
                if self._layers[number - 1].relu:
                    back = torch.ops.aten.threshold_backward(back, given, 0)
        return gradients, losses

    def get_ready(self, params: Sequence[Tensor], batch: StackedBatch) -> None:
        pass


class Layer(NamedTuple):
    """A linear layer, by the positions of its parameters."""

    weight: int  # [out, in]
    bias: int | None
    relu: bool  # follows it

    def forward(self, params: Sequence[Tensor], x: Tensor) -> Tensor:
        """[C, B, in] -> [C, B, out]."""
        weight = params[self.weight].mT
        return torch.bmm(x, weight) if self.bias is None else torch.baddbmm(params[self.bias].unsqueeze(1), x, weight)


def linear_layers(model: FlatModel) -> list[Layer] | None:
    """The layers of a module that is a chain of linear layers and ReLUs on the flattened input; None if it is not."""
    try:
        graph = fx.symbolic_trace(nn.Sequential(model.module))  # so that a lone layer is a layer too
    except Exception:  # whatever a module may do that can't be traced, it is not such a chain
        return None
    modules, layers = dict(graph.named_modules()), list[Layer]()
    place = {id(parameter): position for position, parameter in enumerate(model.trainable)}
    for node in list(graph.graph.nodes)[1:-1]:
        kind = type(modules[node.target]) if node.op == "call_module" else node.target
        if len(node.users) != 1 or node.op not in ("call_module", "call_function", "call_method"):
            return None
        if kind is nn.Linear:
            linear = modules[node.target]
            bias = None if linear.bias is None else place.get(id(linear.bias), -1)
            layers.append(Layer(place.get(id(linear.weight), -1), bias, relu=False))
        elif kind in (nn.ReLU, torch.relu, nn.functional.relu, "relu") and layers:
            layers[-1] = layers[-1]._replace(relu=True)
        elif layers or kind not in (nn.Flatten, torch.flatten, "flatten", "view", "reshape"):
            return None
    found = [position for layer in layers for position in (layer.weight, layer.bias) if position is not None]
    every_parameter_once = sorted(found) == list(range(len(model.trainable)))
    return layers if layers and every_parameter_once and not layers[-1].relu else None


def quick_cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """`cross_entropy` without torch's log-softmax, which is slow on the CPU for few classes."""
    if output.ndim != 2 or output.shape[1] > FEW_CLASSES:
        return cross_entropy(output, target)
    scores = output - output.detach().amax(1, keepdim=True)
    chosen = (scores * (target.unsqueeze(1) == torch.arange(output.shape[1], device=output.device))).sum(1)
    return scores.exp().sum(1).log() - chosen


def _shapes(tensors: Sequence[Tensor]) -> tuple[torch.Size, ...]:
    return tuple(tensor.shape for tensor in tensors)

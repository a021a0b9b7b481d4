"""Gradients of many clients' models at once, from stacked parameters [C, ...] and batches [C, B, ...].

Batches are padded to one length; `weight` [C, B] is 1 / (number of real examples) for those and 0 for padding.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from propfair.algorithms.base import Algorithm, Order
from propfair.core.client import Tensors, Workload, batch_loss, transformed
from propfair.core.params import FlatModel
from propfair.core.precision import predict
from propfair.core.tasks import cross_entropy

CALLS_BEFORE_RECORDING = 25
FEW_CLASSES = 128  # up to here one-hot labels are cheaper than looking up one score in each row


class StackedOrder(NamedTuple):
    """What stacked clients are told: columns [C], the learning-rate scale first, then the named numbers."""

    names: tuple[str, ...]
    columns: tuple[Tensor, ...]

    @property
    def lr_scale(self) -> Tensor:
        """[C]."""
        return self.columns[0]

    def first(self, count: int) -> "StackedOrder":
        """Only the first clients."""
        return StackedOrder(self.names, tuple(column[:count] for column in self.columns))


def order_of(names: tuple[str, ...], columns: Sequence[Any]) -> Order:
    """The order that an algorithm sees: numbers of one client, or columns of several."""
    return Order(columns[0], dict(zip(names, columns[1:], strict=True)))


class StackedBatch(NamedTuple):
    """One step's batch of each client."""

    x: Tensor  # [C, B, ...]
    y: Tensor  # [C, B, ...]
    weight: Tensor  # [C, B]
    scaled: Tensor  # [C, B], weight * lr_scale
    order: StackedOrder

    @property
    def given(self) -> tuple[Tensor, ...]:
        """What functions of one client see."""
        return (self.x, self.y, self.weight, *self.order.columns)

    def first(self, count: int) -> "StackedBatch":
        """Only the first clients."""
        x, y, weight, scaled, order = self
        return StackedBatch(x[:count], y[:count], weight[:count], scaled[:count], order.first(count))


class Goal:
    """What clients descend: lr_scale times the transform of the batch loss, or times the batch loss itself."""

    def __init__(self, algorithm: Algorithm, with_objective: bool = True) -> None:
        self._algorithm, self._with_objective = algorithm, with_objective and algorithm.objective is not None
        self._slope = Recorder(lambda names, *inputs: [grad(lambda *stacked: self._of(names, *stacked).sum())(*inputs)])

    def __call__(self, names: tuple[str, ...], losses: Tensor, weight: Tensor, *columns: Tensor) -> Tensor:
        """The goal of one client from the losses [B] of its examples and from what it is told."""
        return self._of(names, batch_loss(self._algorithm, losses, weight), *columns)

    def batch_losses(self, losses: Tensor, weight: Tensor) -> Tensor:
        """[..., B] -> [...]."""
        if self._algorithm.reduce is None:
            return (losses * weight).sum(-1)
        flat: Tensor = vmap(self._algorithm.reduce)(losses.flatten(0, -2), weight.flatten(0, -2))
        return flat.view(losses.shape[:-1])

    def pull(self, losses: Tensor, batch: StackedBatch) -> Tensor:
        """The derivatives of stacked clients' goals with respect to the losses of their examples, [C, B]."""
        order = batch.order
        if self._algorithm.reduce is not None:
            pull: Tensor = vmap(grad(partial(self, order.names)))(losses, batch.weight, *order.columns)
            return pull
        if not self._with_objective:
            return batch.scaled
        mean = (losses * batch.weight).sum(1)
        padding = (0, (1 << (len(mean) - 1).bit_length()) - len(mean))  # few shapes are ever recorded
        padded = (nn.functional.pad(values, padding) for values in (mean, *order.columns))
        (slope,) = self._slope(order.names, *padded)
        return batch.weight * slope[: len(mean)].unsqueeze(1)

    def _of(self, names: tuple[str, ...], loss: Tensor, *columns: Tensor) -> Tensor:
        if self._with_objective:
            loss = transformed(self._algorithm, loss, order_of(names, columns))
        goal: Tensor = loss * columns[0]
        return goal


class Gradient(Protocol):
    """Gradients of the goals of stacked clients.

    Attributes:
        recorded: differentiated by torch, and recorded: a new number of clients takes time to get ready for.
    """

    recorded: bool

    def __call__(self, params: Tensors, batch: StackedBatch) -> tuple[Tensors, Tensor]:
        """A gradient for each of the stacked parameters, and the losses of the examples [C, B]."""

    def descend(self, params: Tensors, batch: StackedBatch, lr: float, losses: Tensor) -> None:
        """Take a plain step with the first clients, in place, as many as there are rows in `losses` [C', B] to fill."""

    def get_ready(self, params: Tensors, batch: StackedBatch) -> None:
        """Prepare for inputs of these shapes."""


class Recorder:
    """A function of tensors that is recorded once it was called a few times with the same shapes, and then replayed.

    What is replayed are the operations on stacked tensors themselves: neither vmap nor autograd runs again, which
    takes half the time. Recording takes a tenth of a second. The first argument of the function is no tensor: the names
    of the numbers that clients are told, which are the last of its inputs.
    """

    def __init__(self, function: Callable[..., Sequence[Tensor]]) -> None:
        self._function = function
        self._calls: Counter[Any] = Counter()
        self._recorded: dict[Any, Callable[..., Sequence[Tensor]]] = {}

    def __call__(self, names: tuple[str, ...], *inputs: Tensor) -> Sequence[Tensor]:
        key = (names, *(tensor.shape for tensor in inputs))
        self._calls[key] += 1
        if self._calls[key] == CALLS_BEFORE_RECORDING:
            self.record(names, *inputs)
        with torch.no_grad():
            return self._recorded[key](*inputs) if key in self._recorded else self._function(names, *inputs)

    def record(self, names: tuple[str, ...], *inputs: Tensor) -> None:
        """Record the function for inputs of these shapes."""
        key = (names, *(tensor.shape for tensor in inputs))
        if key not in self._recorded:
            recording = make_fx(partial(self._function, names))(*inputs)
            recording.graph.eliminate_dead_code()
            recording.recompile()
            self._recorded[key] = recording


class AnyModule:
    """Gradients of any module that torch.func can batch."""

    recorded = True

    def __init__(self, model: FlatModel, work: Workload, goal: Goal) -> None:
        module = model.module
        names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
        loss = quick_cross_entropy if work.loss is cross_entropy else work.loss

        def gradient(told: tuple[str, ...], *inputs: Tensor) -> list[Tensor]:
            def of_one(params: Sequence[Tensor], x: Tensor, y: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
                call = partial(functional_call, module, dict(zip(names, params, strict=True)))
                losses = loss(predict(call, x, work.local.precision, work.device, cache=False), y)
                return goal(told, losses, *rest), losses

            params, batch = inputs[: len(names)], inputs[len(names) :]
            gradients, losses = vmap(grad(of_one, has_aux=True), randomness="error")(params, *batch)
            return [*gradients, losses]

        self._gradient = Recorder(gradient)

    def __call__(self, params: Tensors, batch: StackedBatch) -> tuple[Tensors, Tensor]:
        *gradients, losses = self._gradient(batch.order.names, *params, *batch.given)
        return gradients, losses

    def descend(self, params: Tensors, batch: StackedBatch, lr: float, losses: Tensor) -> None:
        gradients, found = self(params, batch)
        torch._foreach_add_(first(params, len(losses)), first(gradients, len(losses)), alpha=-lr)
        losses.copy_(found[: len(losses)])

    def get_ready(self, params: Tensors, batch: StackedBatch) -> None:
        self._gradient.record(batch.order.names, *params, *batch.given)


class LinearLayers:
    """Closed-form gradients of linear layers with ReLU between them under cross-entropy."""

    recorded = False

    def __init__(self, layers: list["Layer"], goal: Goal) -> None:
        self._layers, self._goal = layers, goal

    def __call__(self, params: Tensors, batch: StackedBatch) -> tuple[Tensors, Tensor]:
        losses = torch.empty_like(batch.weight)
        inputs, last = self._forward(params, batch, losses)
        gradients: list[Tensor] = [last] * len(params)
        for layer, given, back in self._backward(params, inputs, last):
            gradients[layer.weight] = torch.bmm(back.mT, given)
            if layer.bias is not None:
                gradients[layer.bias] = back.sum(1)
        return gradients, losses

    def descend(self, params: Tensors, batch: StackedBatch, lr: float, losses: Tensor) -> None:
        inputs, last = self._forward(params, batch, losses)
        for layer, given, back in self._backward(params, inputs, last):
            params[layer.weight].baddbmm_(back.mT, given, alpha=-lr)
            if layer.bias is not None:
                params[layer.bias].sub_(back.sum(1), alpha=lr)

    def get_ready(self, params: Tensors, batch: StackedBatch) -> None:
        pass

    def _forward(self, params: Tensors, batch: StackedBatch, losses: Tensor) -> tuple[list[Tensor], Tensor]:
        """The inputs of all layers, the derivative of the goals with respect to the scores; fills in the losses."""
        inputs = [batch.x.flatten(2) if batch.x.ndim > 3 else batch.x]
        for layer in self._layers:
            out = layer.forward(params, inputs[-1])
            inputs.append(out.relu_() if layer.relu else out)
        scores, label = inputs.pop(), batch.y.unsqueeze(2)
        scores.sub_(scores.amax(2, keepdim=True))
        chosen = scores.gather(2, label).squeeze(2)
        total = scores.exp_().sum(2)
        torch.sub(total.log(), chosen, out=losses)
        pull = self._goal.pull(losses, batch)
        back = scores.mul_((pull / total).unsqueeze(2)).scatter_add_(2, label, pull.neg().unsqueeze(2))
        return inputs, back

    def _backward(
        self, params: Tensors, inputs: list[Tensor], back: Tensor
    ) -> Iterator[tuple["Layer", Tensor, Tensor]]:
        """Each layer from the last to the first, its input, and the derivative with respect to its output.

        A layer's parameters are done with when it is given.
        """
        for number in reversed(range(len(self._layers))):
            layer, given, after = self._layers[number], inputs[number], back
            if number:
                back = torch.bmm(after, params[layer.weight])
                if self._layers[number - 1].relu:
                    back = torch.ops.aten.threshold_backward(back, given, 0)
            yield layer, given, after


class Layer(NamedTuple):
    """A linear layer, by the positions of its parameters."""

    weight: int  # [out, in]
    bias: int | None
    relu: bool  # follows it

    def forward(self, params: Sequence[Tensor], x: Tensor) -> Tensor:
        """[C, B, in] -> [C, B, out]."""
        weight = params[self.weight].mT
        return torch.bmm(x, weight) if self.bias is None else torch.baddbmm(params[self.bias].unsqueeze(1), x, weight)


_LAYERS: "weakref.WeakKeyDictionary[FlatModel, list[Layer] | None]" = weakref.WeakKeyDictionary()


def linear_layers(model: FlatModel) -> list[Layer] | None:
    """The layers of a module that is a chain of linear layers and ReLUs on the flattened input; None if it is not."""
    if model not in _LAYERS:  # tracing takes longer than a round
        _LAYERS[model] = _traced(model)
    return _LAYERS[model]


def _traced(model: FlatModel) -> list[Layer] | None:
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


def first(stacked: Tensors, count: int) -> Tensors:
    """The first clients of stacked tensors."""
    return stacked if len(stacked[0]) == count else [tensor[:count] for tensor in stacked]

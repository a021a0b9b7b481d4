"""PropFair in one line for any training loop, on any platform."""

from torch import Tensor, nn

from propfair.algorithms.transforms import Variant, check_baseline, negative_utility
from propfair.errors import ConfigError


class PropFairLoss(nn.Module):
    r"""Wraps a criterion so that plain federated averaging of its gradients becomes PropFair.

    $$-M \log_{[\epsilon]}(1 - \ell / M)$$ (paper, eq. 3.8, up to a constant and the factor M) of the batch-mean loss
    $\ell$ that `criterion` returns. The slope is 1 at no loss and M / (M - loss) elsewhere, so a learning rate that
    suits `criterion` suits this, too. Without the factor, as in the paper, it is about 1/M, and the learning rate has
    to be larger.

    This is PropFair on the step: with many local steps between two averages little of it is left, see `PropFair`.

    Args:
        criterion: any callable that returns the mean loss of a batch.
        M: the loss at which a client has no utility left.
        epsilon: the utility below which the logarithm goes on as a straight line.
        variant: the slope of that line, 1/M ("practical", as in the paper's experiments) or 1/epsilon ("huber").
        normalise: False leaves the factor M out.

    >>> import torch
    >>> criterion = PropFairLoss(nn.CrossEntropyLoss(), M=5.0)
    >>> round(float(criterion(torch.zeros(4, 10), torch.arange(4))), 4)
    3.0857
    """

    def __init__(
        self, criterion: nn.Module, M: float = 5.0, epsilon: float = 0.2, variant: Variant = "practical",
        normalise: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        if isinstance(criterion, type):
            raise ConfigError(
                f"the criterion must be an object: write {criterion.__name__}(), not {criterion.__name__}"
            )
        check_baseline(M, epsilon)
        if variant not in ("practical", "huber"):
            raise ConfigError(f"variant must be 'practical' or 'huber'; got variant={variant!r}")
        self.criterion, self.M, self.epsilon, self.variant, self.normalise = criterion, M, epsilon, variant, normalise

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        """The transformed loss of a batch; the arguments go to the criterion."""
        loss: Tensor = self.criterion(*args, **kwargs)
        if loss.ndim:
            raise ConfigError(
                f"PropFairLoss transforms the mean loss of a batch; the criterion returned shape {list(loss.shape)}. "
                "Use reduction='mean'."
            )
        scale = self.M if self.normalise else 1.0
        return scale * negative_utility(loss / scale, self.M / scale, self.epsilon / scale, self.variant)

    def extra_repr(self) -> str:
        return f"M={self.M}, epsilon={self.epsilon}, variant={self.variant!r}, normalise={self.normalise}"

"""SCAFFOLD (Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, 2020)."""

from dataclasses import dataclass
from typing import ClassVar

from propfair.algorithms.base import Advice, Drift, register
from propfair.algorithms.over import Over, without_variates


@register("scaffold")
@dataclass(frozen=True, kw_only=True)
class Scaffold(Over):
    r"""Local steps are corrected by how a client's gradients differ from those of all. Around any other algorithm.

    $$\theta_i \leftarrow \theta_i - \eta\, (\nabla f_i(\theta_i) - c_i + \bar c), \qquad
      c_i \leftarrow \text{the mean gradient of client i in the round}, \qquad \bar c = \sum_i q_i c_i$$
    (first paper, Algorithm 1 with option II).

    The first paper has equal weights q_i = 1/n. Here they are those by which `over` weighed the clients in the round
    before, and the data shares of clients that were absent: corrected clients all move along the mean of the c_i, so
    that with other weights in it the weights of a fair rule would have no effect. Variates are held by the server,
    which can work them out (`propfair.core.drift`): clients need no memory and send no more than usual, but the server
    must see single updates.

    For plain SGD without momentum. With one full-batch step a round it is `over` itself. Not in the paper.

    Args:
        over: the algorithm underneath.
        options: its hyper-parameters.

    >>> from propfair.algorithms import Cohort
    >>> scaffold = Scaffold(over="term", options={"alpha": 0.5})
    >>> scaffold.weigh(Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0]), {})[0]
    tensor([0.3821, 0.2944, 0.3236], dtype=torch.float64)
    >>> scaffold.drift
    Drift(pull=0.0, variates='scaffold', alpha=0.0)

    References:
        S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh, SCAFFOLD: Stochastic Controlled
        Averaging for Federated Learning, ICML 2020.
    """

    advice: ClassVar[Advice | None] = Advice(
        optimises="What `over` does.",
        tune="What `over` needs.",
        epochs="Made for it: local steps are corrected.",
        participation="Corrections of absent clients grow old.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        without_variates(self)

    @property
    def drift(self) -> Drift | None:
        return (self.inner.drift or Drift())._replace(variates="scaffold")

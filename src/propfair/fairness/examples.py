"""The paper's two small examples, solved exactly: where AFL fails (Appendix C), and Nash bargaining (Figure 1)."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from propfair.errors import ConfigError
from propfair.fairness.arrays import FloatArray, normalized_shares
from propfair.fairness.bargaining import BargainingSolution, HalfSpaces, Hull, nash_bargaining
from propfair.fairness.means import (
    ArithmeticMean,
    GeneralizedMean,
    HuberizedMean,
    Maximum,
    PowerMean,
    TiltedMean,
)

OBJECTIVES: dict[str, GeneralizedMean] = {
    "FedAvg": ArithmeticMean(),
    "AFL": Maximum(),
    "q-FFL, q=0.1": PowerMean(0.1),
    "q-FFL, q=5": PowerMean(5.0),
    "TERM, alpha=0.5": TiltedMean(0.5),
    "TERM, alpha=10": TiltedMean(10.0),
    "PropFair, M=2": HuberizedMean(M=2.0, epsilon=0.2),
    "PropFair, M=5": HuberizedMean(M=5.0, epsilon=0.2),
}


class Points(NamedTuple):
    """Examples of one client."""

    x: FloatArray  # [m, 2]
    y: FloatArray  # [m], -1 or 1


class Solution(NamedTuple):
    """The linear classifier sign(w'x) that minimises an objective over two clients, and what it does."""

    objective: str
    w: tuple[float, float]
    losses: tuple[float, float]  # logistic, on the training data of each client
    weights: tuple[float, float]  # normalised dual weights: the FedAvg with these weights has the same solution
    test_error: float  # exact, under the distribution


class Direction(NamedTuple):
    """What a classifier does on the samples that the paper prints."""

    w: tuple[float, float]
    training_errors: tuple[float, float]  # 0-1, per client
    test_error: float


@dataclass(frozen=True, eq=False)
class AflFailure:
    """The AFL failure case.

    Attributes:
        directions: 0-1 errors on the samples as printed; AFL's optimum is any w with |w2| > |w1|.
        printed: logistic minimisers on the samples as printed, 4 and 4: all objectives return w = 0.
        runnable: the same when the first client keeps its 4 outliers and the second has many draws. This is the case
            that the paper argues about: AFL alone fails.
        clients: training data of the runnable form.
    """

    directions: tuple[Direction, ...]
    printed: tuple[Solution, ...]
    runnable: tuple[Solution, ...]
    clients: tuple[Points, Points]


def outliers() -> Points:
    """The first client's four examples, all of the rare kind: S_1 of the paper."""
    return Points(np.array([[0.5, 0.5], [0.5, -0.5], [-0.5, 0.5], [-0.5, -0.5]]), np.array([1.0, 1.0, -1.0, -1.0]))


def draw_points(num: int, seed: int) -> Points:
    """Draws from the distribution (eq. C.1): y is +-1, x1 on the side of -y with probability 0.9; x2 says nothing."""
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(num) < 0.5, 1.0, -1.0)
    rare = rng.random(num) < 0.1
    left = (y > 0) ^ rare
    x1 = np.where(left, -rng.random(num), rng.random(num))
    return Points(np.column_stack([x1, rng.uniform(-1, 1, num)]), y)


def exact_error(w: tuple[float, float]) -> float:
    """The exact error of sign(w'x) under the distribution: 0.9 - 0.8 times the left box's share predicted +1.

    A tie counts one half, and w = 0 (up to 1e-9) is one big tie.

    >>> round(exact_error((-1.0, 0.0)), 9), exact_error((0.0, 1.0))
    (0.1, 0.5)
    """
    w1, w2 = w
    if max(abs(w1), abs(w2)) < 1e-9:
        return 0.5
    steep = abs(w1) > abs(w2)
    share = 0.25 * abs(w2 / w1) if steep else 0.5 - 0.25 * w1 / abs(w2)  # steep: of the side that w1 votes against
    predicted = 1 - share if steep and w1 < 0 else share
    return 0.9 - 0.8 * predicted


def training_error(w: tuple[float, float], points: Points) -> float:
    """0-1 error on a client's examples; a tie counts one half."""
    margins = points.y * (points.x @ np.array(w))
    return float(((margins < 0) + 0.5 * (margins == 0)).mean())


def logistic_losses(w: FloatArray, clients: tuple[Points, Points]) -> FloatArray:
    """Mean of log(1 + exp(-y w'x)) for each client."""
    return np.array([np.logaddexp(0, -client.y * (client.x @ w)).mean() for client in clients])


def solve(clients: tuple[Points, Points], objective: GeneralizedMean) -> tuple[FloatArray, FloatArray]:
    """The exact minimiser w of a generalised mean of two clients' logistic losses, and its dual weights.

    By the dual view, w minimises sum lambda f for the dual weights lambda at w itself. The more weight the first client
    gets, the smaller its loss and hence the weight that the objective wants for it: bisection finds where both agree.
    """
    shares = normalized_shares([len(client.y) for client in clients], 2)
    low, high = 0.0, 1.0
    w = np.zeros(2)
    for _ in range(50):
        weight = (low + high) / 2
        w = _weighted_logistic(clients, np.array([weight, 1 - weight]), w)
        wanted = objective.dual_weights(logistic_losses(w, clients), shares, normalize=True)[0]
        low, high = (weight, high) if wanted > weight else (low, weight)
    return w, np.array([weight, 1 - weight])


def afl_failure(num_draws: int = 400, seed: int = 0) -> AflFailure:
    """The AFL failure case, as printed and in a form that shows the failure.

    The paper gives two clients with opposite samples, S_1 and S_2, four each. There, every objective here is
    indifferent (w = 0), not AFL alone. The argument needs a client whose data are few and odd beside another whose data
    are many: the second client gets `num_draws` draws from the common distribution instead.

    >>> error = {row.objective: row.test_error for row in afl_failure().runnable}
    >>> round(error["FedAvg"], 3), round(error["AFL"], 3), round(error["PropFair, M=2"], 3)
    (0.108, 0.505, 0.109)
    """
    if num_draws < 4:
        raise ConfigError(f"num_draws must be >= 4; got num_draws={num_draws}. Use 400 for the table.")
    odd = outliers()
    opposite = Points(odd.x, -odd.y)
    clients = (odd, draw_points(num_draws, seed))
    directions = [(-1.0, 0.0), (0.0, 1.0), (0.0, -1.0), (-0.5, 1.0), (0.5, 1.0), (1.0, 0.0)]
    return AflFailure(
        directions=tuple(
            Direction(w, (training_error(w, odd), training_error(w, opposite)), exact_error(w)) for w in directions
        ),
        printed=_solutions((odd, opposite)),
        runnable=_solutions(clients),
        clients=clients,
    )


@dataclass(frozen=True, eq=False)
class NashExample:
    """Nash bargaining between two clients on two sets.

    Attributes:
        corners: of the set of Figure 1, which has an edge on which the total utility is constant and largest.
        edge: the two ends of that edge.
        fairest: the Nash bargaining solution of that set: the middle of the edge, where both have the same.
        curve: the border of a second set, a quarter of an ellipse, on which the three principles differ.
        utilitarian, nash, egalitarian: their choices on the second set.
    """

    corners: FloatArray  # [m, 2]
    edge: FloatArray  # [2, 2]
    fairest: BargainingSolution
    curve: FloatArray  # [k, 2]
    utilitarian: FloatArray
    nash: BargainingSolution
    egalitarian: FloatArray


def nash_example() -> NashExample:
    """Figure 1 of the paper, and a set on which total, Nash product and worst-off disagree."""
    rows, limits = [[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]], [1.0, 0.8, 0.7]
    corners = np.array([[0.0, 0.0], [0.8, 0.0], [0.8, 0.2], [0.3, 0.7], [0.0, 0.7]])
    angles = np.linspace(0, np.pi / 2, 181)  # of u1^2 + 4 u2^2 = 1; 45 degrees, the Nash solution, is among them
    curve = np.column_stack([np.cos(angles), 0.5 * np.sin(angles)])
    return NashExample(
        corners=corners,
        edge=corners[2:4],
        fairest=nash_bargaining(HalfSpaces(rows, limits)),
        curve=curve,
        utilitarian=np.array([1.0, 0.25]) / np.sqrt(1.25),
        nash=nash_bargaining(Hull(curve)),
        egalitarian=np.full(2, 1 / np.sqrt(5)),
    )


def _solutions(clients: tuple[Points, Points]) -> tuple[Solution, ...]:
    rows = []
    for name, objective in OBJECTIVES.items():
        w, weights = solve(clients, objective)
        classifier = (float(w[0]), float(w[1]))
        f1, f2 = logistic_losses(w, clients).tolist()
        rows.append(
            Solution(name, classifier, (f1, f2), (float(weights[0]), float(weights[1])), exact_error(classifier))
        )
    return tuple(rows)


def _weighted_logistic(clients: tuple[Points, Points], weights: FloatArray, start: FloatArray) -> FloatArray:
    """Newton's method on sum lambda_i f_i(w), with steps halved until the objective falls."""
    rows = np.vstack([client.y[:, None] * client.x for client in clients])
    each = np.concatenate(
        [np.full(len(client.y), w / len(client.y)) for client, w in zip(clients, weights, strict=True)]
    )

    def objective(w: FloatArray) -> float:
        return float(each @ np.logaddexp(0, -rows @ w))

    w = start
    for _ in range(100):
        wrong = 1 / (1 + np.exp(rows @ w))  # probability of the other label
        gradient = -rows.T @ (each * wrong)
        hessian = (rows * (each * wrong * (1 - wrong))[:, None]).T @ rows
        step = np.linalg.solve(hessian, gradient)
        gain = float(step @ gradient)  # twice what is left to gain, near the minimum
        if gain < 1e-24:
            break
        size = 1.0
        while gain > 1e-10 and objective(w - size * step) > objective(w) - 0.25 * size * gain:
            size /= 2
        w = w - size * step
    return w

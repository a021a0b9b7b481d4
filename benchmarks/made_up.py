"""Made-up federations whose truth is known, to see how often intervals cover it (`benchmarks.coverage`).

Client i's model under seed s gets example j right with probability expit(a_i + b_s + c_si + k e_ij): the level of the
client, what the seed does to all clients and to this one, and how hard the example is, for all models alike. Two
algorithms, B better than A for some clients and worse for others, are tested on the same examples.

Every federation of a regime has other levels, and a share is a mean over many of them: coverage at a single truth
jumps with every step of a number that has few values (Agresti and Coull 1998).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from propfair.fairness.intervals import Over

Floats = npt.NDArray[np.float64]
POOL = 2000  # draws behind the truth of what has no formula
NODES, NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(61)
NODE_WEIGHTS = NODE_WEIGHTS / NODE_WEIGHTS.sum()


@dataclass(frozen=True, eq=False)
class Regime:
    """What is common to the federations of a regime.

    Attributes:
        name: in the table.
        sizes: [n], test examples of the clients.
        centre: of the clients' levels, log-odds of a right answer to an example of average difficulty.
        width: levels are spread evenly over so much, in an order drawn by lot.
        failed: the level of one client, drawn by lot, that the models fail; None for no such client.
        gain_width: what B adds to the levels is spread evenly over so much, around a tenth of it.
        seed_std, client_std: of the log-odds over seeds, for all clients together and for each.
        difficulty: standard deviation of the log-odds over examples.
    """

    name: str
    sizes: npt.NDArray[np.int64]
    centre: float
    width: float = 3.0
    failed: float | None = None
    gain_width: float = 1.2
    seed_std: float = 0.2
    client_std: float = 0.3
    difficulty: float = 3.0

    def federation(self, rng: np.random.Generator) -> "MadeUp":
        """Draw one."""
        size = self.sizes.size
        levels = self.centre + self.width * rng.permutation(np.linspace(-0.5, 0.5, size))
        if self.failed is not None:
            levels[rng.integers(size)] = self.failed
        gain = self.gain_width * rng.permutation(np.linspace(-0.4, 0.6, size))
        return MadeUp(self, np.stack([levels, levels + gain]))


@dataclass(frozen=True, eq=False)
class Answered:
    """Which examples A and B get right, [2, R, S, N], R times with other seeds, other examples or both."""

    right: npt.NDArray[np.bool_]
    sizes: npt.NDArray[np.int64]

    @cached_property
    def accuracies(self) -> Floats:
        """[2, R, S, n]."""
        starts = np.cumsum([0, *self.sizes[:-1]])
        rates: Floats = np.add.reduceat(self.right, starts, axis=-1, dtype=np.int64) / self.sizes
        return rates


@dataclass(frozen=True, eq=False)
class Truth:
    """What an interval should cover.

    Attributes:
        tests: [2, P, n], accuracies of A and B if what would be drawn again is drawn again, one model and one test set
            each: the mean of a number over them is the truth about its mean.
        whole: [2, P, n], the same with all examples of the clients; for intervals over seeds, that keep their examples,
            equal to `tests`.
    """

    tests: Floats
    whole: Floats


@dataclass(frozen=True, eq=False)
class MadeUp:
    """A federation: levels of the clients under A and B, [2, n]."""

    regime: Regime
    levels: Floats

    def scenes(
        self, over: Over, seeds: Sequence[int], times: int, rng: np.random.Generator
    ) -> tuple[list[Answered], Truth]:
        """Draw, for each number of seeds, what `times` intervals are computed from; and the truth they should cover."""
        sizes = self.regime.sizes
        if over == "seeds":
            right = self._answers(self._models((POOL,), rng), self._examples((1,), rng), rng)
            accuracies = Answered(right[:, None], sizes).accuracies[:, 0]
            chosen = [rng.choice(POOL, (times, number), replace=False) for number in seeds]
            return [Answered(right[:, rows], sizes) for rows in chosen], Truth(accuracies, accuracies)
        fixed = self._models((1,), rng) if over == "examples" else None
        drawn = []
        for number in seeds:
            models = self._models((times, number), rng) if fixed is None else fixed[:, None]
            drawn.append(Answered(self._answers(models, self._examples((times, 1), rng), rng), sizes))
        models = self._models((POOL,), rng) if fixed is None else fixed
        tests = Answered(self._answers(models, self._examples((POOL,), rng), rng)[:, None], sizes)
        return drawn, Truth(tests.accuracies[:, 0], self._whole(models))

    def _models(self, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
        """[2, ..., n], the log-odds of models: seeds are shared, the same start and the same order for A and B."""
        world = self.regime
        normal = rng.standard_normal
        own = (*shape, self.levels.shape[-1])
        shift = world.seed_std * normal((*shape, 1)) + world.client_std * normal(own)
        other = shift / 2 + world.client_std * normal(own)
        return np.stack([self.levels[0] + shift, self.levels[1] + other])

    def _examples(self, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[np.float32]:
        """[..., N], how hard they are."""
        hard = rng.standard_normal((*shape, int(self.regime.sizes.sum())), dtype=np.float32)
        return np.float32(self.regime.difficulty) * hard

    def _answers(
        self, models: Floats, examples: npt.NDArray[np.float32], rng: np.random.Generator
    ) -> npt.NDArray[np.bool_]:
        """[2, ..., N], right or wrong."""
        odds = np.repeat(models.astype(np.float32), self.regime.sizes, axis=-1) + examples
        # right with probability expit(odds): where a logistic variable is below them
        uniform = rng.random(odds.shape, dtype=np.float32)
        right: npt.NDArray[np.bool_] = uniform * (1 + np.exp(-odds)) < 1
        return right

    def _whole(self, models: Floats) -> Floats:
        """[2, P, n], accuracies on all examples of the clients, by quadrature."""
        rates = np.zeros_like(models)
        for node, weight in zip(NODES, NODE_WEIGHTS, strict=True):
            rates += weight / (1 + np.exp(-models - self.regime.difficulty * node))
        return rates


def regimes() -> tuple[Regime, ...]:
    """Those of the table: ten clients with 10 to 120 test examples, unless the name says otherwise."""
    unequal = np.array([10, 12, 15, 20, 25, 30, 40, 60, 80, 120])
    return (
        Regime("accuracies about 60 %", unequal, 1.0),
        Regime("near 1", unequal, 7.0),
        Regime("near 0", unequal, -5.0),
        Regime("one failed client", unequal, 4.0, width=1.5, failed=-4.0),
        Regime("10 examples each, about 60 %", np.full(10, 10), 1.0),
    )


def federations(regime: Regime, number: int, seed: int) -> Iterator[tuple[MadeUp, np.random.Generator]]:
    """So many of a regime, each with a generator of its own."""
    for child in np.random.SeedSequence(seed).spawn(number):
        rng = np.random.default_rng(child)
        yield regime.federation(rng), rng

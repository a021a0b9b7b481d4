"""Learning rates that change over the rounds: a factor for each round, which clients are told with their orders."""

import math
import re
from collections.abc import Callable

from propfair.errors import ConfigError

RateFactor = Callable[[int], float]  # of the round, from 1, to the factor on the learning rate
_PIECE = re.compile(r"(\w+)(?:\(([^()]*)\))?")


def constant() -> RateFactor:
    """1 in all rounds."""
    return lambda _: 1.0


def step(every: float, factor: float = 0.1) -> RateFactor:
    """Multiplied by `factor` after every so many rounds."""
    return lambda round_: factor ** ((round_ - 1) // every)


def cosine(rounds: float, floor: float = 0.0) -> RateFactor:
    """From 1 down to `floor` over so many rounds, along half a cosine; `floor` afterwards."""
    return lambda round_: floor + (1 - floor) * (1 + math.cos(math.pi * min(1.0, (round_ - 1) / rounds))) / 2


def warmup(rounds: float) -> RateFactor:
    """Up to 1 in equal steps over so many rounds."""
    return lambda round_: min(1.0, round_ / rounds)


_KINDS: dict[str, Callable[..., RateFactor]] = {
    "constant": constant, "step": step, "cosine": cosine, "warmup": warmup,
}  # fmt: skip


def rate_factor(schedule: str | RateFactor) -> RateFactor:
    """The factor on the learning rate by round, from its written form or a function.

    >>> factor = rate_factor("warmup(2) * step(3, 0.5)")
    >>> [factor(round_) for round_ in range(1, 8)]
    [0.5, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25]
    """
    if not isinstance(schedule, str):
        return schedule
    pieces = [_piece(text.strip(), schedule) for text in schedule.split("*")]
    return lambda round_: math.prod(piece(round_) for piece in pieces)


def _piece(text: str, schedule: str) -> RateFactor:
    found = _PIECE.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        numbers = [float(number) for number in (found[2] or "").split(",") if number.strip()]
        if any(number < 0 for number in numbers) or (numbers and numbers[0] == 0):
            raise ValueError
        return _KINDS[found[1]](*numbers)
    except (KeyError, TypeError, ValueError):
        raise ConfigError(
            f"lr_schedule must be constant, step(ROUNDS, FACTOR), cosine(ROUNDS), warmup(ROUNDS), or several with * "
            f"between; got {schedule!r}"
        ) from None

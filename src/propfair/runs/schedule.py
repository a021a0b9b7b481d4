"""How long a run is, and when it is looked at."""

from dataclasses import dataclass

from propfair.errors import ConfigError, shown
from propfair.federation.federation import Split
from propfair.registry import check_fields

MOST_ROUNDS = 2**31 - 1  # what the records have room for


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long to train and when to look.

    Args:
        rounds: communication rounds.
        eval_every: rounds between evaluations of all clients; the last round is always evaluated.
        eval_splits: what is evaluated then; splits that no client has are skipped.
        final_splits: what is evaluated after the last round only.
        checkpoint_every: rounds between checkpoints, if there is a run folder. Where rounds are slow there is one a
            minute at least.
    """

    rounds: int = 50
    eval_every: int = 10
    eval_splits: tuple[Split, ...] = ("validation", "test")
    final_splits: tuple[Split, ...] = ()
    checkpoint_every: int = 10

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("rounds", "eval_every", "checkpoint_every"):
            if not 1 <= getattr(self, name) <= MOST_ROUNDS:
                raise ConfigError(
                    f"{name} must be at least 1 and at most {MOST_ROUNDS}; got {name}={shown(getattr(self, name))}"
                )

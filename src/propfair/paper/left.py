"""What is left to run for a table or figure, and for how long."""

from typing import NamedTuple

from propfair.tuning.estimate import Estimate


class Left(NamedTuple):
    """What is left to run on one data set.

    Attributes:
        title: of the data set.
        note: what to know about this scale.
        labels: the algorithms.
        estimate: runs and seconds.
    """

    title: str
    note: str
    labels: tuple[str, ...]
    estimate: Estimate


def said_estimate(found: Estimate) -> str:
    """The estimate in a sentence."""
    minutes = found.seconds / 60
    choosing = f"{found.num_trials} runs of {found.trial_rounds} rounds to choose by, " if found.num_trials else ""
    return (
        f"left: {choosing}{found.num_finals} runs of {found.final_rounds} rounds for the results; "
        f"a round took {found.round_seconds:.2f} s; about "
        f"{f'{minutes:.0f} min' if minutes < 90 else f'{minutes / 60:.1f} h'} on {found.workers} "
        f"{'process' if found.workers == 1 else 'processes'}"
    )

"""Options that several commands share."""

import enum
from pathlib import Path
from typing import Annotated, Any

import typer

from propfair.errors import ConfigError


class Format(enum.StrEnum):
    """How results are printed."""

    table = "table"
    json = "json"


class Over(enum.StrEnum):
    """What intervals are drawn over."""

    seeds = "seeds"
    examples = "examples"
    both = "both"


Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", show_default=False,
        help="Settings, such as [cyan]algorithm=propfair algorithm.M=5 data.num_clients=20 local.lr=0.1[/cyan].",
    ),
]  # fmt: skip
ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="A TOML file; KEY=VALUE settings win over it.", show_default=False)
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="The folder to write to.", show_default=False)]
Force = Annotated[bool, typer.Option("--force", help="Replace the run folder if it exists.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
OutputFormat = Annotated[Format, typer.Option("--format", help="How to print the result.")]
Device = Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1, mps.", show_default=False)]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", envvar="PROPFAIR_DATA", help="Where data sets are.", show_default=False),
]
Seed = Annotated[int | None, typer.Option("--seed", help="Decides all randomness of the run.", show_default=False)]


Trust = Annotated[
    bool, typer.Option("--trust", help="Agree to what the file or folder asks to be imported or connected.")
]
DrawnOver = Annotated[
    Over | None,
    typer.Option("--over", help="What intervals are drawn over; else seeds, or examples.", show_default=False),
]
Log = Annotated[
    list[str] | None,
    typer.Option("--log", help="Also log to tensorboard, mlflow or wandb (offline).", show_default=False),
]


def seeds_said(text: str | None, overrides: dict[str, Any]) -> tuple[int, ...] | None:
    """The seeds of several runs: 0,1,2 as numbers, or the one of `seed=3`, which is taken out of the overrides.

    None if neither is said.
    """
    own = overrides.pop("seed", None)
    if text is not None and own is not None:
        raise ConfigError(f"seed={own} and --seeds {text} both say which seeds to run: leave seed={own} out")
    if text is None and own is None:
        return None
    said = f"seed={own}" if text is None else f"--seeds {text}"
    try:
        seeds = tuple(int(seed) for seed in (str(own) if text is None else text).split(","))
    except ValueError:
        raise ConfigError(f"--seeds takes whole numbers, such as 0,1,2; got {said}") from None
    if len(set(seeds)) < len(seeds):  # the same run twice would pass for two seeds that agree
        raise ConfigError(f"--seeds takes different numbers, such as 0,1,2; got {said}")
    return seeds


def gathered(
    overrides: list[str] | None,
    *,
    device: str | None = None,
    data_dir: Path | None = None,
    seed: int | None = None,
    log: list[str] | None = None,
) -> dict[str, Any]:
    """The settings by dotted keys: KEY=VALUE, read once, and the named options, which win."""
    from propfair.runs.config import parse_overrides

    folder = None if data_dir is None else str(data_dir)
    named = {"device": device, "data.folder": folder, "seed": seed, "log": log or None}
    return parse_overrides(overrides or []) | {key: value for key, value in named.items() if value is not None}

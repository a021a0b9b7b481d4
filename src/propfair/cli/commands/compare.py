"""`propfair compare`: several algorithms on the same clients."""

from typing import Annotated

import typer

from propfair.cli.app import app
from propfair.cli.options import (
    ConfigFile,
    DataDir,
    Device,
    Force,
    Format,
    Out,
    OutputFormat,
    Quiet,
    gathered,
    seed_list,
)


@app.command()
def compare(
    items: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ALGORITHM[:KEY=VALUE,...]]... [KEY=VALUE]...", show_default=False,
            help="Algorithms, each with settings of its own ([cyan]propfair:M=5,local.lr=0.5[/cyan]), and settings for "
            "all ([cyan]data.num_clients=20[/cyan]).",
        ),
    ] = None,
    config: ConfigFile = None,
    seeds: Annotated[str, typer.Option("--seeds", help="Seeds, such as 0,1,2.")] = "0",
    out: Out = None,
    force: Force = False,
    device: Device = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    output: OutputFormat = Format.table,
) -> None:  # fmt: skip
    """Train several algorithms on the same clients; a table and a picture of who is served how well."""
    from propfair.cli.display import shown
    from propfair.cli.report_text import print_comparison, write_page
    from propfair.report.picture import draw_comparison
    from propfair.runs.compare import compare as run_all
    from propfair.runs.contestant import Contestant
    from propfair.runs.names import free_folder
    from propfair.runs.toml import read_toml

    content = read_toml(config)
    listed = content.pop("contestants", [])
    overrides = [item for item in items or [] if _is_setting(item)]
    named = [item for item in items or [] if not _is_setting(item)]
    contestants = Contestant.parse_all(named or listed or ["fedavg", "propfair"])
    numbers = seed_list(seeds)
    folder = out or free_folder("compare")
    compared, federation = run_all(
        content, contestants, overrides=gathered(overrides, device=device, data_dir=data_dir), seeds=numbers,
        out=folder, force=force,
        show_run=lambda title, rounds: shown(title, rounds, quiet=quiet or output == Format.json),
    )  # fmt: skip
    picture = folder / "comparison.png"
    source = compared[0].config.data.name
    draw_comparison(
        {one.contestant.label: one.group.values() for one in compared}, picture,
        f"{source}, {federation.num_clients} clients: who is served how well",
    )  # fmt: skip
    print_comparison(compared, federation, [picture], write_page([folder], folder / "report.html"), output)
    if any(result.state == "failed" for one in compared for result in one.results):
        raise typer.Exit(1)


def _is_setting(item: str) -> bool:
    """`data.num_clients=20` is a setting, `propfair:M=5` is an algorithm."""
    return "=" in item and ":" not in item.partition("=")[0]

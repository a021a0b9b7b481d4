"""`propfair partition`: who holds what, before anything is trained."""

from pathlib import Path
from typing import Annotated, Any

import typer

from propfair.cli.app import app
from propfair.cli.options import DataDir, Format, OutputFormat, Overrides, gathered

_SHOWN_CLASSES = 20
_SHOWN_CLIENTS = 50


@app.command()
def partition(
    name: Annotated[str, typer.Argument(help="A data set, see [cyan]propfair list data[/cyan].")],
    overrides: Overrides = None,
    picture: Annotated[Path, typer.Option("--picture", help="Where to draw clients x classes.")] = Path(
        "partition.png"
    ),
    save: Annotated[
        Path | None,
        typer.Option("--save", help="Write the partition, to be used with data.saved=FILE.", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    output: OutputFormat = Format.table,
) -> None:
    """Deal a data set to clients; a table and a picture of who holds what."""
    from propfair.cli.display import drawn, print_json, print_table
    from propfair.federation.saved import save_partition
    from propfair.files import picture_format
    from propfair.report.partition import describe_partition, draw_partition
    from propfair.runs.building import build_federation
    from propfair.runs.config import make_config

    picture_format(picture)  # before there is work to lose
    federation = build_federation(make_config({}, {"data": name, **gathered(overrides, data_dir=data_dir)}))
    table = describe_partition(federation)
    title = f"{name}: {federation.num_clients} clients"
    written = drawn(picture, lambda path: draw_partition(federation, path, title))
    if save is not None:
        save_partition(federation, save)
    if output == Format.json:
        print_json(
            {
                "fingerprint": federation.fingerprint,
                "note": table.note,
                "summary": table.summary(),
                "clients": table.rows(),
            }
        )
        return
    print_table(f"{name}: examples of each client", *_cells(table.rows()), caption=table.note)
    print(", ".join(f"{key} {value:g}" for key, value in table.summary().items()))
    for path in (written, save):
        if path is not None:
            print(f"written: {path}")


def _cells(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows for the terminal: no more classes than fit, no more clients than anyone reads."""
    columns = [key for key in rows[0] if not key.startswith("class_") or int(key[6:]) < _SHOWN_CLASSES]
    shown = [[str(row[key]) for key in columns] for row in rows[:_SHOWN_CLIENTS]]
    if len(rows) > len(shown):
        shown.append([f"and {len(rows) - len(shown)} more", *[""] * (len(columns) - 1)])
    return [column.removeprefix("class_") for column in columns], shown

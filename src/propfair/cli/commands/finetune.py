"""`propfair finetune`: train on with other algorithms, and see who is better off."""

from pathlib import Path
from typing import Annotated

import typer

from propfair.cli.app import app
from propfair.cli.options import Format, Out, OutputFormat, Quiet, Trust, gathered


@app.command()
def finetune(
    items: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN... [KEY=VALUE]...",
            help="Runs to start from, and settings for all ([cyan]schedule.rounds=20[/cyan]).",
        ),
    ],
    algorithms: Annotated[
        list[str], typer.Option("--with", help="An algorithm to go on with: [cyan]NAME[:KEY=VALUE,...][/cyan].")
    ],
    M: Annotated[
        float | None, typer.Option("--M", help="Compare by M - loss instead of accuracy.", show_default=False)
    ] = None,
    out: Out = None,
    trust: Trust = False,
    quiet: Quiet = False,
    output: OutputFormat = Format.table,
) -> None:
    """Train on from the models of runs with other algorithms, and see who is better off.

    The paper's two experiments: others from PropFair, [cyan]finetune PROPFAIR --with fedavg --with afl[/cyan], and
    PropFair from others, [cyan]finetune FEDAVG AFL --with propfair[/cyan]. Called again with the same
    [cyan]--out[/cyan], it goes on where it was.
    """
    from propfair.cli.certificate_text import print_certificate
    from propfair.cli.display import drawn, print_json, shown
    from propfair.report.relative import draw_relative
    from propfair.runs.certificate import Pairs, Utility, certify
    from propfair.runs.contestant import Contestant
    from propfair.runs.finetune import finetune as train_on
    from propfair.runs.grouping import group_runs
    from propfair.runs.names import free_folder
    from propfair.runs.reading import read_run

    overrides = [item for item in items if "=" in item and not Path(item).exists()]
    starts = [Path(item) for item in items if item not in overrides]
    utility = Utility(M=M)
    if starts:  # what clients get must be known before anything is trained
        Pairs.of(group_runs([read_run(start) for start in starts]), utility=utility)
    folder = out or free_folder("finetune")
    tuned = train_on(
        starts, Contestant.parse_all(algorithms), overrides=gathered(overrides), out=folder, trust=trust,
        show_run=lambda title, rounds: shown(title, rounds, quiet=quiet or output == Format.json),
    )  # fmt: skip
    certified = [
        certify(group.runs, [one.end for one in tuned if one.start in group.runs], utility=utility)
        for group in group_runs(dict.fromkeys(one.start for one in tuned))
    ]
    titles = [
        f"{one.reference.label}\nthen {other.label.partition(' from ')[0]}: {100 * value:+.2f} %"
        for one in certified
        for other, value in zip(one.others, one.certificate.values, strict=True)
    ]
    changes = [row for one in certified for row in one.certificate.relative]
    title = "Relative change of each client after fine-tuning"
    picture = drawn(
        folder / "relative-changes.png",
        lambda path: draw_relative(titles, changes, certified[0].clients, path, title),
    )
    if output == Format.json:
        print_json({"certificates": [one.as_dict() for one in certified], "picture": picture and str(picture)})
        return
    for one in certified:
        print_certificate(one, None, output)
    if picture is not None:
        typer.echo(f"picture: {picture}")

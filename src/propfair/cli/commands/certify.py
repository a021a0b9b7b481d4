"""`propfair certify`: is a model proportionally fair against others?"""

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from propfair.cli.app import app
from propfair.cli.options import DataDir, DrawnOver, Format, OutputFormat, Trust

if TYPE_CHECKING:
    from collections.abc import Sequence

    from propfair.runs.run import Run


class Split(enum.StrEnum):
    """Where utilities are measured."""

    test = "test"
    validation = "validation"
    train = "train"


class Weights(enum.StrEnum):
    """How clients count."""

    samples = "samples"
    uniform = "uniform"


@app.command()
def certify(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN [--against] RUNS...", help="The run to certify, then those to compare it with."),
    ],
    against: Annotated[
        list[Path] | None, typer.Option("--against", help="Runs to compare it with.", show_default=False)
    ] = None,
    of: Annotated[
        str | None,
        typer.Option("--of", help="Of all runs in the places given: whose models to certify.", show_default=False),
    ] = None,
    split: Annotated[Split, typer.Option("--split", help="Where utilities are measured.")] = Split.test,
    M: Annotated[
        float | None, typer.Option("--M", help="Use the utility M - loss instead of accuracy.", show_default=False)
    ] = None,
    weights: Annotated[Weights, typer.Option("--weights", help="How clients count in the sum.")] = Weights.samples,
    alpha: Annotated[float, typer.Option("--alpha", help="Order of fairness; 1: proportional.")] = 1.0,
    level: Annotated[float, typer.Option("--level", help="Coverage of the intervals, all at once.")] = 0.95,
    tolerance: Annotated[
        float, typer.Option("--tolerance", help="An average change up to this counts as none; 0.01: 1 %.")
    ] = 0.01,
    over: DrawnOver = None,
    paired: Annotated[
        bool, typer.Option("--paired", help="Run the models on the test data again, where runs kept no answers.")
    ] = False,
    picture: Annotated[
        Path, typer.Option("--out", "-o", help="The picture to write (PNG, PDF, SVG).")
    ] = Path("certificate.png"),
    data_dir: DataDir = None,
    trust: Trust = False,
    output: OutputFormat = Format.table,
) -> None:  # fmt: skip
    """Is a model proportionally fair? Each client's relative change under other models, summed, with intervals.

    Runs of the same setting that differ in the seed count as one model. With --of, runs are also folders of runs and
    files of kept runs, and the model is named as in the tables: certify results/small-cifar10.parquet --of propfair
    """
    from propfair.cli.certificate_text import panel_titles, print_certificate
    from propfair.cli.display import drawn
    from propfair.errors import ConfigError
    from propfair.files import picture_format
    from propfair.report.relative import draw_relative
    from propfair.runs.building import build_federation
    from propfair.runs.certificate import Utility
    from propfair.runs.certificate import certify as certify_runs
    from propfair.runs.folder import RunFolder
    from propfair.runs.launch import saved_config
    from propfair.runs.reading import read_run

    picture_format(picture)  # before there is work to lose
    paths = [runs[0], *(against or []), *runs[1:]]
    own, others = _named(paths, of) if of else ([read_run(paths[0])], [read_run(path) for path in paths[1:]])
    federation = None
    if paired:
        folders = [run.folder for run in (*own, *others)]
        if None in folders:
            raise ConfigError("--paired runs models again, and kept runs have none: leave it out, or give run folders")
        folder = {"data.folder": str(data_dir)} if data_dir else {}
        configs = [saved_config(RunFolder.open(path), folder, trust=trust) for path in folders if path is not None]
        federation = build_federation(configs[0])
    certified = certify_runs(
        own, others, utility=Utility(split.value, M), weights=weights.value, alpha=alpha, level=level,
        tolerance=tolerance, over=over.value if over else None, paired=federation,
    )  # fmt: skip
    title = f"Relative change of {certified.utility} for the clients of {certified.reference.label}"
    changes = list(certified.certificate.relative)
    written = drawn(
        picture, lambda path: draw_relative(panel_titles(certified), changes, certified.clients, path, title)
    )
    print_certificate(certified, written, output)


def _named(places: "Sequence[Path]", name: str) -> tuple[list["Run"], list["Run"]]:
    """Of all finished runs in some places: those of a model, and those of the others on the same clients."""
    from propfair.errors import printable
    from propfair.report.document import incomplete
    from propfair.runs.grouping import model_among
    from propfair.runs.reading import read_runs, trials_apart

    found, problems = read_runs(places)
    for problem in [*problems, *incomplete(found)]:
        typer.echo(f"warning: {problem}", err=True)
    proper, trials = trials_apart(found)
    finished = [run for run in proper or trials if run.status.state == "finished"]
    if unfinished := [printable(run.name) for run in proper or trials if run not in finished]:
        typer.echo(f"warning: left out, since they did not finish: {', '.join(unfinished)}", err=True)
    model, rivals = model_among(finished, name)
    return list(model.runs), [run for rival in rivals for run in rival.runs]

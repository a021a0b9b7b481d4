"""`propfair example`: the paper's two worked examples, with pictures."""

from pathlib import Path
from typing import Annotated

import typer

from propfair.cli.app import app
from propfair.cli.options import Format, OutputFormat

example = typer.Typer(no_args_is_help=True, help="Worked examples of the paper, computed and drawn.")
app.add_typer(example, name="example")
Picture = Annotated[Path | None, typer.Option("--picture", help="Where to draw it.", show_default=False)]


@example.command("afl-failure")
def afl_failure(picture: Picture = None, output: OutputFormat = Format.table) -> None:
    """Appendix C: four outliers make AFL as good as a coin, and leave the others alone."""
    from propfair.cli.display import print_json, print_table
    from propfair.fairness.pictures import example_afl_failure

    path = picture or Path("afl-failure.png")
    found = example_afl_failure(path)
    if output == Format.json:
        print_json(
            {
                "printed": [solution._asdict() for solution in found.printed],
                "runnable": [solution._asdict() for solution in found.runnable],
                "picture": str(path),
            }
        )
        return
    for title, solutions in (
        ("As printed: 4 and 4 samples, the method does not matter", found.printed),
        ("With few outliers: 4 of them against 400 draws", found.runnable),
    ):
        print_table(
            title,
            ["objective", "w", "f1", "f2", "test error, %"],
            [
                [
                    s.objective,
                    _pair(s.w),
                    f"{s.losses[0]:.3f}",
                    f"{s.losses[1]:.3f}",
                    f"{100 * s.test_error:.1f}",
                ]
                for s in solutions
            ],
        )
    print(f"picture: {path}")


@example.command()
def nash(picture: Picture = None) -> None:
    """Figure 1: the Nash bargaining solution among the maximisers of the total utility."""
    from propfair.fairness.pictures import example_nash

    path = picture or Path("nash.png")
    example_nash(path)
    print(f"picture: {path}")


def _pair(w: tuple[float, float]) -> str:
    first, second = (round(value, 3) + 0.0 for value in w)  # + 0.0 turns -0.0 into 0.0
    return f"({first:.3f}, {second:.3f})"

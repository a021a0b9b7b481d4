"""Tables for papers: Markdown, LaTeX and CSV from the same cells."""

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from propfair.files import write_text
from propfair.runs.measures import Measure

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "−": "$-$",
    "↓": r"$\downarrow$", "\n": " ", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
}  # fmt: skip
_FORMULA = re.compile(r"[=@\t\r]|[+-](?!([\d.]+(e[+-]?\d+)?( ± [\d.]+)?)?$)")  # numbers and a lone dash are none


@dataclass(frozen=True)
class TextTable:
    """Cells as they are to be read.

    Attributes:
        title: what it shows.
        columns: headers.
        rows: of cells, as many as columns.
        notes: lines below it.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def to_markdown(self) -> str:
        """A table of GitHub's Markdown."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        body = "".join("| " + " | ".join(markdown_text(cell) for cell in line) + " |\n" for line in lines)
        return f"### {self.title}\n\n{body}" + "".join(f"\n{note}\n" for note in self.notes)

    def to_latex(self) -> str:
        """A `tabular` with rules of the booktabs package, inside a `table`."""
        lines = [" & ".join(latex_text(cell) for cell in line) + r" \\" for line in (self.columns, *self.rows)]
        caption = " ".join((f"{self.title}.", *self.notes))
        return "\n".join(
            [
                r"\begin{table}", r"\centering", rf"\caption{{{latex_text(caption)}}}",
                rf"\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}", r"\toprule", lines[0], r"\midrule",
                *lines[1:], r"\bottomrule", r"\end{tabular}", r"\end{table}", "",
            ]
        )  # fmt: skip

    def to_csv(self) -> str:
        """The columns and rows alone."""
        text = io.StringIO()
        rows = [[csv_text(cell) for cell in row] for row in (self.columns, *self.rows)]
        csv.writer(text, lineterminator="\n").writerows(rows)
        return text.getvalue()

    def write(self, stem: Path) -> list[Path]:
        """Write stem.md, stem.tex and stem.csv."""
        texts = {".md": self.to_markdown(), ".tex": self.to_latex(), ".csv": self.to_csv()}
        paths = []
        for ending, text in texts.items():
            path = stem.with_name(stem.name + ending)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, text)
            paths.append(path)
        return paths


def value_text(value: float, measure: Measure, spread: float | None = None) -> str:
    """Accuracies in percent, all else as it is, with a spread over seeds if there is one; - for nan."""
    if math.isnan(value):
        return "-"
    if measure.metric == "accuracy":
        return f"{100 * value:.1f}" if spread is None else f"{100 * value:.1f} ± {100 * spread:.1f}"
    return f"{value:.4g}" if spread is None else f"{value:.4g} ± {spread:.2g}"


def markdown_text(cell: str) -> str:
    r"""Text that Markdown shows as it is.

    >>> print(markdown_text("<b>a|b</b> *c*"))
    &lt;b>a\|b&lt;/b> \*c\*
    """
    escaped = re.sub(r"([\\|*`\[\]])|(?<!\w)_|_(?!\w)", r"\\\g<0>", cell)
    return " ".join(escaped.replace("&", "&amp;").replace("<", "&lt;").split())


def csv_text(cell: str) -> str:
    """Text that a spreadsheet shows as it is: one that it would take for a formula gets an apostrophe before it.

    >>> csv_text("=HYPERLINK(1)"), csv_text("-1+A1"), csv_text("-0.5 ± 0.1"), csv_text("-"), csv_text("FedAvg")
    ("'=HYPERLINK(1)", "'-1+A1", '-0.5 ± 0.1', '-', 'FedAvg')
    """
    return f"'{cell}" if _FORMULA.match(cell) else cell


def latex_text(cell: str) -> str:
    r"""Text that LaTeX shows as it is.

    >>> print(latex_text("50 % of a_b"))
    50 \% of a\_b
    """
    return "".join(_LATEX.get(character, character) for character in cell)


def finite(value: Any) -> Any:
    """JSON values without nan and infinities, which JSON does not have.

    >>> finite({"a": [1.0, math.inf]})
    {'a': [1.0, None]}
    """
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""The tables in docs/ whose runs are on record in results/: `python -m benchmarks.results` writes them again.

A table stands between two comments that say what it is made of:

    <!-- propfair table results/NAME.parquet --statistics mean,worst10 -->
    <!-- end of the table -->

    <!-- the field: results/field-NAME.parquet -->
    <!-- end of the table -->

The field has ranks, and differences from FedAvg; without a file, ranks on all data sets. Others are made by `propfair
reproduce natural --data NAME --records FILE`, `propfair reproduce table6-cifar10 --scale paper --records FILE` and
`propfair reproduce claims --records results`.
"""

import re
import tempfile
from pathlib import Path

from propfair.algorithms import ALGORITHMS
from propfair.paper.catalogue import Claims, Ranking, Scale, load_preset
from propfair.paper.claims import claims_table, judge
from propfair.paper.onrecord import SCALES, read_records
from propfair.paper.ranking import Ranks, held_against, overall
from propfair.paper.reproduce import Silent, reproduce
from propfair.paper.reproduced import Reproduced
from propfair.paper.settings import Settings
from propfair.paper.tables import table_of
from propfair.report.group_table import group_table
from propfair.report.sweep import settings_text
from propfair.report.table_files import write_tables
from propfair.runs.grouping import Group, by_clients
from propfair.runs.measures import Measure
from propfair.runs.reading import read_runs
from propfair.runs.run import Run
from propfair.tuning.criteria import Criterion

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "results.md", ROOT / "docs" / "claims.md")
USUAL = "test/accuracy"
_TABLE = re.compile(
    r"(<!-- propfair table (?P<file>\S+) --statistics (?P<statistics>\S+)(?: --measure (?P<measure>\S+))? -->\n).*?"
    r"(<!-- end of the table -->)",
    re.DOTALL,
)
_REPRODUCED = re.compile(
    r"(<!-- propfair reproduce (?P<name>\S+)(?: --data (?P<data>\S+))?(?: --scale (?P<scale>\S+))? "
    r"--records (?P<place>\S+) -->\n).*?"
    r"(<!-- end of the table -->)",
    re.DOTALL,
)
_FIELD = re.compile(r"(<!-- the field:(?: (?P<file>\S+))? -->\n).*?(<!-- end of the table -->)", re.DOTALL)


def rebuilt(text: str) -> str:
    """A page with its tables made anew from the records."""
    text = _REPRODUCED.sub(
        lambda found: (
            f"{found[1]}\n{redone(found['name'], found['data'], found['scale'], ROOT / found['place'])}\n{found[6]}"
        ),
        text,
    )
    text = _TABLE.sub(
        lambda found: (
            f"{found[1]}\n{table(ROOT / found['file'], found['statistics'], found['measure'] or USUAL)}\n{found[5]}"
        ),
        text,
    )
    return _FIELD.sub(
        lambda found: f"{found[1]}\n{field(ROOT / found['file']) if found['file'] else field_ranks()}\n{found[3]}", text
    )


def records(path: Path) -> list[Run]:
    """The runs in a file."""
    runs, problems = read_runs([path])
    if problems:
        raise SystemExit(str(problems[0]))
    return runs


def redone(name: str, data: str | None, scale: str | None, place: Path) -> str:
    """The Markdown of a table that `propfair reproduce` makes from records."""
    preset = load_preset(name)
    if isinstance(preset, Claims):
        return claims_table(preset, *judge(preset, read_records([place]))).to_markdown()
    known: Scale = next((one for one in SCALES if one == scale), "small")
    settings = Settings(scale=known, out=place.parent, experiments=(data,) if data else (), records=(place,))
    return "\n".join(table_of(one).to_markdown() for one in reproduce(name, settings, Silent()))


def table(path: Path, statistics: str, measure: str = USUAL) -> str:
    """The Markdown of a table."""
    names, chosen = statistics.split(","), Measure.parse(measure)
    tables = [group_table(comparison, names, chosen) for comparison in by_clients(records(path))]
    with tempfile.TemporaryDirectory() as folder:
        write_tables(tables, Path(folder) / "table.md")
        return (Path(folder) / "table.md").read_text(encoding="utf-8")


def field(path: Path) -> str:
    """The Markdown of the field on one data set."""
    preset, groups = _preset(), _groups(path)
    numbers, _ = held_against(preset.reference, groups, Criterion.parse(preset.criterion))
    chosen = {label: _chosen(label, group.runs[0]) for label, group in groups.items()}
    return _markdown(Reproduced(path.stem, preset, numbers, chosen=chosen))


def field_ranks() -> str:
    """The Markdown of the ranks on all data sets."""
    preset, ranks = _preset(), dict[str, Ranks]()
    for path in sorted((ROOT / "results").glob("field-*.parquet")):
        data = path.stem.removeprefix("field-")
        _, ranks[data] = held_against(preset.reference, _groups(path), Criterion.parse(preset.criterion))
    return _markdown(overall("field", preset, ranks))


def _preset() -> Ranking:
    preset = load_preset("field")
    assert isinstance(preset, Ranking)
    return preset


def _groups(path: Path) -> dict[str, Group]:
    """By contestant, its runs."""
    members: dict[str, dict[int, Run]] = {}
    for run in records(path):
        if run.status.state != "finished":
            continue
        members.setdefault(run.plain_name, {})[run.seed] = run
    return {
        label: Group(label, tuple(own for _, own in sorted(by_seed.items())), {}) for label, by_seed in members.items()
    }


def _chosen(label: str, run: Run) -> str:
    """The learning rate, and the main hyper-parameter unless the contestant fixes it."""
    options = {key: value for key, value in run.config["algorithm"].items() if key != "name"}
    tried = [key for key in ALGORITHMS.make(run.config["algorithm"]["name"], options).tried if f"{key}=" not in label]
    return settings_text({"local.lr": run.config["local"]["lr"], **{key: options[key] for key in tried[:1]}})


def _markdown(found: Reproduced) -> str:
    """The rows alone: the page says what they are."""
    return table_of(found).to_markdown().split("\n", 2)[2].rstrip() + "\n"


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(rebuilt(page.read_text(encoding="utf-8")), encoding="utf-8")

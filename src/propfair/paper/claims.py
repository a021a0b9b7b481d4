"""The claims of the paper, judged on records of runs: each holds, does not hold, is undecided, or was not measured.

Every number is one that the library computes elsewhere: differences with intervals that hold all at once
(`propfair.runs.standing`), certificates (`propfair.runs.certificate`), statistics of runs. A claim *holds* if all that
it says is beyond chance, it *does not hold* if the opposite of some of it is beyond chance, and it is *undecided*
otherwise.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from propfair.errors import ConfigError
from propfair.fairness.differences import Differences
from propfair.fairness.intervals import Evidence
from propfair.fairness.quantiles import mid_p_limits
from propfair.fairness.verdict import TOLERANCE
from propfair.files import write_text
from propfair.paper import catalogue
from propfair.paper.catalogue import Claim, Claims, Preset, load_experiment, load_preset
from propfair.paper.changes import recorded_pairs
from propfair.paper.onrecord import OnRecord, on_record, read_records
from propfair.paper.reproduced import Number
from propfair.paper.statistics_tables import run_values
from propfair.report.tables import TextTable
from propfair.runs.cautions import not_at_rest, unsettled
from propfair.runs.certificate import certify
from propfair.runs.grouping import Group
from propfair.runs.measures import Measure
from propfair.runs.run import Run
from propfair.runs.standing import differences

Finding = Literal["holds", "does not hold", "undecided", "not measured"]
LEVEL = 0.95
_OFTEN = 0.25  # the share of runs from which on we call it often; the paper gives no number


@dataclass(frozen=True)
class Judged:
    """A claim on one data set at one scale.

    Attributes:
        claim: what the paper says.
        data: the data set.
        scale: of the runs; empty if there are none.
        seeds: how many, at least.
        finding: what the records say in a word.
        said: and in a sentence.
        numbers: behind it, in percent, beside the paper's.
        missing: algorithms that the claim is about and that have no runs.
    """

    claim: Claim
    data: str
    scale: str = ""
    seeds: int = 0
    finding: Finding = "not measured"
    said: str = "no runs on record"
    numbers: list[Number] = field(default_factory=list)
    missing: tuple[str, ...] = ()


def judge(preset: Claims, runs: Sequence[Run]) -> tuple[list[Judged], list[str]]:
    """All claims on all data sets that they are about, and what to know about the runs behind them."""
    about = dict.fromkeys(name for claim in preset.claims for name in _experiments(claim))
    there = {experiment: on_record(runs, experiment) for experiment in about}
    found = [one for claim in preset.claims for one in _judged(claim, there)]
    notes = []
    for at_scales in there.values():
        for records in at_scales:
            named = f"{records.experiment.title}, {records.scale}"
            notes.append(f"{named}: {records.experiment.note(records.scale)}.")
            if records.runs:
                how = [run_values(label, records.group(label)) for label in records.runs]
                notes.append(f"{named}: {'; '.join(how)}.")
            tuned = [records.tuned_group(*pair) for pair in records.tuned]
            known = [*records.unsettled([*dict.fromkeys([*records.runs, *records.failed])]), *unsettled(tuned)]
            notes += [f"{named}: {said}" for said in known]
    return found, notes


def claims_table(preset: Claims, judged: Sequence[Judged], notes: Sequence[str]) -> TextTable:
    """A line for each claim on each data set."""
    rows: list[list[str]] = []
    for one in judged:
        data = f"{one.data}, {one.scale}" if one.scale and one.finding != "not measured" else one.data
        row = [one.claim.text, one.claim.where, data, str(one.seeds or "-"), one.said, one.finding]
        last = rows[-1] if rows else []
        if one.finding == "not measured" and [*last[:2], *last[3:]] == [*row[:2], *row[3:]]:
            last[2] = f"{last[2]}; {data}"  # one line for all data sets that tell as little
        else:
            rows.append(row)
    columns = ["claim", "where", "data, scale", "seeds", "what the records say", "finding"]
    usual = (
        f"Intervals hold together for all comparisons of a line at {100 * LEVEL:g} %. A claim holds if all that it "
        "says is beyond chance, and does not hold if the opposite of some of it is."
    )
    return TextTable(preset.title, columns, rows, [usual, *notes])


def judge_records(name: str, places: Sequence[Path], out: Path) -> tuple[TextTable, list[Path], dict[str, Any]]:
    """Judge the claims of a preset on the records at some places; the table, the files written, all as JSON values."""
    preset = load_preset(name)
    assert isinstance(preset, Claims)
    judged, notes = judge(preset, read_records(places))
    table = claims_table(preset, judged, notes)
    content = {"title": preset.title, "notes": notes, "claims": [_as_dict(one) for one in judged]}
    written = table.write(out / name)
    written.append(out / f"{name}.json")
    write_text(written[-1], json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return table, written, content


def _judged(claim: Claim, there: Mapping[str, Sequence[OnRecord]]) -> Iterator[Judged]:
    for experiment in _experiments(claim):
        judged = [_judge(claim, experiment, records) for records in there[experiment]]
        measured = [one for one in judged if one.finding != "not measured"]
        yield from measured or judged[:1] or [Judged(claim, load_experiment(experiment).title)]


def _judge(claim: Claim, experiment: str, records: OnRecord) -> Judged:
    if isinstance(claim, catalogue.BestClaim):
        return _best(claim, _table(claim.tables, experiment), records)
    if isinstance(claim, catalogue.OrderClaim):
        return _order(claim, _table(claim.tables, experiment), records)
    if isinstance(claim, catalogue.RelativeClaim):
        return _relative(claim, records)
    if isinstance(claim, catalogue.FinetunedClaim):
        return _finetuned(claim, records)
    if isinstance(claim, catalogue.GapClaim):
        return _gap(claim, records)
    return _diverges(claim, records)


def _best(claim: catalogue.BestClaim, table: catalogue.Statistics, records: OnRecord) -> Judged:
    here, missing = _present(table.paper, records)
    if claim.algorithm not in here or len(here) < 2:
        return _unmeasured(claim, records, missing)
    groups = [records.group(label) for label in here]
    found = differences(groups, claim.statistic, level=LEVEL)
    surely = _surely(found)
    mine = here.index(claim.algorithm)
    others = [place for place in range(len(here)) if place != mine]
    ahead = [here[place] for place in others if surely[mine, place]]
    behind = [here[place] for place in others if surely[place, mine]]
    numbers = _numbers(table, claim.statistic, groups)
    nearest = max(others, key=lambda place: float(found.values[place]))
    gap, low, high = (100 * float(one[mine, nearest]) for one in (found.differences, found.low, found.high))
    said = (
        f"{_values(numbers, records)}; surely ahead of {_listed(ahead)}, surely behind {_listed(behind)}; the best of "
        f"the others is {here[nearest]}, "
        f"{gap:+.1f} {_limits(low, high)}"
    )
    mean = {label: own[claim.statistic][0] for label, own in table.paper.items()}
    better = [label for label, value in mean.items() if value > mean[claim.algorithm]]
    if better:
        said += f"; in the paper's own table {_listed(better)} has more"
    finding: Finding = "does not hold" if behind else "holds" if len(ahead) == len(others) else "undecided"
    shared = [int(found.num_seeds[mine, place]) for place in others]
    return _told(claim, records, here, finding, said, numbers, missing, shared)


def _order(claim: catalogue.OrderClaim, table: catalogue.Statistics, records: OnRecord) -> Judged:
    here, missing = _present(table.paper, records)
    if len(here) < 2:
        return _unmeasured(claim, records, missing)
    groups = [records.group(label) for label in here]
    found = differences(groups, claim.statistic, level=LEVEL)
    surely = _surely(found)
    paper = [table.paper[label][claim.statistic] for label in here]
    pairs = [
        (a, b)
        for a, (more, std) in enumerate(paper)
        for b, (less, other_std) in enumerate(paper)
        if more - less > math.hypot(std, other_std)
    ]
    if not pairs:
        return _unmeasured(
            claim, records, (), f"the paper's standard deviations do not tell {' and '.join(here)} apart"
        )
    same = sum(bool(surely[pair]) for pair in pairs)
    reversed_ = [(here[a], here[b]) for a, b in pairs if surely[b, a]]
    numbers = _numbers(table, claim.statistic, groups)
    said = (
        f"{_values(numbers, records)}; of {len(pairs)} pairs that the paper's standard deviations tell apart {same} "
        f"surely in its order, {len(reversed_)} surely the other way round"
        + (f" ({', '.join(f'{b} over {a}' for a, b in reversed_)})" if reversed_ else "")
    )
    finding: Finding = "does not hold" if reversed_ else "holds" if same == len(pairs) else "undecided"
    shared = [int(found.num_seeds[pair]) for pair in pairs]
    return _told(claim, records, here, finding, said, numbers, missing, shared)


def _relative(claim: catalogue.RelativeClaim, records: OnRecord) -> Judged:
    figure = load_preset(claim.figure)
    assert isinstance(figure, catalogue.Relative)
    here, missing = _present([figure.reference, *figure.paper], records)
    if figure.reference not in here or len(here) < 2:
        return _unmeasured(claim, records, missing)
    pairs = {
        label: (records.group(figure.reference), records.group(label)) for label in here if label != figure.reference
    }
    return _signed(claim, records, pairs, figure.paper, missing)


def _finetuned(claim: catalogue.FinetunedClaim, records: OnRecord) -> Judged:
    figure = load_preset(claim.figure)
    assert isinstance(figure, catalogue.Finetune)
    pairs = {
        label: (records.group(pair[0]), records.tuned_group(*pair))
        for label, pair in recorded_pairs(figure, records).items()
    }
    missing = tuple(label for label in figure.paper if label not in pairs)
    return _signed(claim, records, pairs, figure.paper, missing)


def _gap(claim: catalogue.GapClaim, records: OnRecord) -> Judged:
    here, missing = _present([claim.algorithm, claim.rival], records)
    if missing or not all(records.group(label).has(Measure("train")) for label in here):
        return _unmeasured(claim, records, missing, "no training accuracies on record")
    gaps = [{seed: _lost(run, claim.statistic) for seed, run in records.group(one).by_seed.items()} for one in here]
    seeds = sorted(set(gaps[0]) & set(gaps[1]))
    if not seeds:
        return _unmeasured(claim, records, (), f"no seed that both {' and '.join(here)} were run with")
    evidence = Evidence(np.array([gaps[0][seed] - gaps[1][seed] for seed in seeds]))
    interval = evidence.interval(level=LEVEL) if len(seeds) > 1 else None
    low, high = (100 * interval.low, 100 * interval.high) if interval else (math.nan, math.nan)
    number = Number(claim.algorithm, f"gap - {claim.rival}", 100 * evidence.value, low=low, high=high)
    lost = [100 * float(np.mean([own[seed] for seed in seeds])) for own in gaps]
    lost_by = ", ".join(f"{points:.1f} points under {label}" for points, label in zip(lost, here, strict=True))
    said = f"{claim.statistic} loses {lost_by}: {number.ours:+.1f} {_limits(low, high)}"
    finding: Finding = "holds" if low > 0 else "does not hold" if high < 0 else "undecided"
    groups = [records.group(label) for label in here]
    trained = [f"{100 * group.statistics(Measure('train'))['mean'].mean:.1f} under {group.label}" for group in groups]
    said += f"; mean training accuracy {', '.join(trained)}"
    if not_at_rest(groups):  # what has learned less by heart loses less
        finding = "undecided"
        said += ": not equally far trained, as not all are at rest"
    return _told(claim, records, here, finding, said, [number], (), [len(seeds)])


def _diverges(claim: catalogue.DivergesClaim, records: OnRecord) -> Judged:
    runs = [
        run
        for run in [*records.others, *(one for own in records.runs.values() for one in own)]
        if run.status.state in ("finished", "failed")
        and run.config["algorithm"]["name"] == claim.name
        and all(run.config["algorithm"].get(key) == value for key, value in claim.settings.items())
    ]
    if not runs:
        return _unmeasured(claim, records, (), "no such runs on record")
    diverged = [run for run in runs if run.status.state == "failed" or run.num_dropped]
    low, high = mid_p_limits(len(diverged) / len(runs), len(runs), 1 - LEVEL)
    means = [f"{100 * run.summary().mean:.1f}" for run in runs if run.status.state == "finished"]
    rates = sorted({run.config["local"]["lr"] for run in runs})
    said = (
        f"{len(diverged)} of {len(runs)} runs diverged, at learning rates {', '.join(map(str, rates))}: "
        f"{100 * low:.0f} to {100 * high:.0f} % of such runs, and often is taken to be more than {100 * _OFTEN:g} %"
    ) + (f"; means of those that ended: {', '.join(means)}" if means else "")
    seeds = len({run.seed for run in runs})
    finding: Finding = "undecided"
    if seeds > 1:
        finding = "holds" if low > _OFTEN else "does not hold" if high < _OFTEN else "undecided"
    return Judged(
        claim, records.experiment.title, records.scale, seeds, finding, said,
        [Number(claim.name, "diverged", 100 * len(diverged) / len(runs))],
    )  # fmt: skip


def _surely(found: Differences) -> NDArray[np.bool_]:
    """[G, G], the row is ahead of the column beyond chance; single models count only where there is nothing else."""
    apart = ~np.eye(len(found.names), dtype=bool)
    seeds: NDArray[np.bool_] = found.num_seeds > 1
    surely: NDArray[np.bool_] = found.ahead & (seeds | ~(seeds & apart).any())
    return surely


def _signed(
    claim: catalogue.RelativeClaim | catalogue.FinetunedClaim, records: OnRecord,
    pairs: Mapping[str, tuple[Group, Group]], paper: Mapping[str, float], missing: Sequence[str],
) -> Judged:  # fmt: skip
    """A claim on the mean relative changes of the clients of first models under others: their signs.

    That models get no better allows for a change up to the tolerance of certificates.
    """
    apart = [label for label, (first, other) in pairs.items() if not set(first.by_seed) & set(other.by_seed)]
    pairs = {label: pair for label, pair in pairs.items() if label not in apart}
    if not pairs:
        return _unmeasured(claim, records, [*missing, *apart])
    numbers: list[Number] = []
    shared: list[int] = []
    above = below = no_more = 0
    level = 1 - (1 - LEVEL) / len(pairs)
    for label, (first, other) in pairs.items():
        found = certify(first.runs, other.runs, level=level)
        interval = found.intervals[0]
        low, high = (100 * interval.low, 100 * interval.high) if interval else (math.nan, math.nan)
        value = 100 * float(found.certificate.values[0])
        numbers.append(Number(label, "relative change", value, paper=paper[label], low=low, high=high))
        shared.append(len(set(first.by_seed) & set(other.by_seed)))
        if shared[-1] > 1:  # one seed tells of single models
            above += low > 0
            below += high < 0
            no_more += high < 100 * TOLERANCE
    better = isinstance(claim, catalogue.FinetunedClaim) and claim.better
    as_said, against = (above, below) if better else (below, above)
    if isinstance(claim, catalogue.FinetunedClaim) and not better:
        as_said = no_more
    said = ", ".join(
        f"{one.row} {one.ours:+.1f} % {_limits(one.low, one.high)} (paper {one.paper:+.1f} %)" for one in numbers
    )
    finding: Finding = "does not hold" if against else "holds" if as_said == len(numbers) else "undecided"
    here = list(dict.fromkeys(first.label for first, _ in pairs.values()))
    return _told(claim, records, here, finding, said, numbers, [*missing, *apart], shared)


def _told(
    claim: Claim, records: OnRecord, here: Sequence[str], finding: Finding, said: str, numbers: list[Number],
    missing: Sequence[str], shared: Sequence[int],
) -> Judged:  # fmt: skip
    """With what keeps a claim from being settled; `shared` is how many seeds each comparison has."""
    seeds = min(shared)
    final, whole = finding, said
    if missing:
        whole += f"; not run: {', '.join(missing)}"
    failed = records.failures(here)
    whole += "".join(f"; {one[0].lower()}{one[1:].rstrip('.')}" for one in failed)
    if (missing or failed) and finding == "holds":
        final = "undecided"  # part of a claim is not the claim
    if max(shared) == 1:
        final = "undecided"  # a claim is about algorithms, and one seed tells of single models
        whole += "; one seed: intervals are over test examples, and leave out what other seeds would change"
    elif seeds == 1:
        whole += "; comparisons with one seed decide nothing"
    elif final in ("holds", "does not hold") and not_at_rest([records.group(label) for label in here]):
        whole += "; not all are at rest: with more rounds it may be otherwise"
    return Judged(
        claim, records.experiment.title, records.scale, seeds, final, whole, numbers, tuple(missing)
    )  # fmt: skip


def _unmeasured(claim: Claim, records: OnRecord, missing: Sequence[str], why: str = "") -> Judged:
    said = f"no runs of {', '.join(missing)} on record" if missing else why
    return Judged(claim, records.experiment.title, records.scale, said=said, missing=tuple(missing))


def _present(labels: Sequence[str] | dict[str, Any], records: OnRecord) -> tuple[list[str], tuple[str, ...]]:
    """Those of the algorithms that have runs, and those that have none."""
    return [one for one in labels if one in records.runs], tuple(one for one in labels if one not in records.runs)


def _lost(run: Run, statistic: str) -> float:
    """What a statistic loses from the training to the test split."""
    train, test = (run.summary(Measure(split)).as_dict()[statistic] for split in ("train", "test"))
    return train - test


def _experiments(claim: Claim) -> list[str]:
    names = [claim.figure] if isinstance(claim, (catalogue.RelativeClaim, catalogue.FinetunedClaim)) else claim.tables
    return [_experiment(load_preset(name)) for name in names]


def _experiment(preset: Preset) -> str:
    if not isinstance(preset, (catalogue.Statistics, catalogue.Relative, catalogue.Finetune)):
        raise ConfigError(f"a claim can't be about {preset.title}: it has no experiment")
    return preset.experiment


def _table(names: Sequence[str], experiment: str) -> catalogue.Statistics:
    tables = [load_preset(name) for name in names]
    return next(one for one in tables if isinstance(one, catalogue.Statistics) and one.experiment == experiment)


def _numbers(table: catalogue.Statistics, statistic: str, groups: Sequence[Group]) -> list[Number]:
    """A statistic of each group in percent, beside the paper's; the highest first."""
    found = {group.label: group.statistics()[statistic] for group in groups}
    numbers = [
        Number(label, statistic, 100 * own.mean, 100 * own.std, *table.paper[label][statistic])
        for label, own in found.items()
    ]
    return sorted(numbers, key=lambda number: -number.ours)


def _values(numbers: Sequence[Number], records: OnRecord) -> str:
    """Ours; at the paper's scale beside the paper's, and how many of its standard deviations lie between."""
    at_scale = records.scale == "paper"
    return ", ".join(
        f"{one.row} {one.ours:.1f}" + (f" (paper {one.paper:.1f}, {one.in_stds:+.1f} std)" if at_scale else "")
        for one in numbers
    )


def _limits(low: float, high: float) -> str:
    return "(no interval)" if math.isnan(low) else f"[{low:+.1f}, {high:+.1f}]"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _as_dict(one: Judged) -> dict[str, Any]:
    return {
        "claim": one.claim.text, "where": one.claim.where, "data": one.data, "scale": one.scale or None,
        "seeds": one.seeds, "finding": one.finding, "said": one.said, "missing": list(one.missing),
        "numbers": [number.as_dict() for number in one.numbers],
    }  # fmt: skip

"""Figures of relative changes: what the clients of one model get from another (eq. 5.1, Figures 2 to 4).

The models are those of a finished sweep, or of runs on record.
"""

from collections.abc import Mapping, Sequence

from propfair.errors import DataError
from propfair.paper.catalogue import Finetune, Relative
from propfair.paper.onrecord import OnRecord, recorded
from propfair.paper.reproduced import Number, Reproduced
from propfair.paper.settings import Settings
from propfair.runs.cautions import unsettled
from propfair.runs.certificate import Certified, certify
from propfair.runs.run import Run

Pairs = Mapping[str, tuple[Sequence[Run], Sequence[Run]]]  # by the label of the paper: the first models, and the others
Changes = tuple[list[Number], list[Certified], list[str]]  # the last: the verdicts


def changes_from(reference: Sequence[Run], others: Mapping[str, Sequence[Run]], preset: Relative) -> Changes:
    """The clients of one model under all others at once: one certificate, with one verdict."""
    found = certify(reference, [run for own in others.values() for run in own])
    numbers = [
        _number(label, float(value), preset) for label, value in zip(others, found.certificate.values, strict=True)
    ]
    return numbers, [found], [f"{preset.reference}: {found.verdict}"]


def changes_by_training_on(pairs: Pairs, preset: Finetune) -> Changes:
    """The clients of each model under what came of training it on: a certificate for each."""
    found = {label: certify(first, then) for label, (first, then) in pairs.items()}
    numbers = [_number(label, float(one.certificate.values[0]), preset) for label, one in found.items()]
    return numbers, list(found.values()), [f"{label}: {one.verdict}" for label, one in found.items()]


def recorded_changes(name: str, preset: Relative | Finetune, settings: Settings) -> Reproduced:
    """The figure from the runs that the settings name, at their scale; nothing is trained."""
    records = recorded(preset.title, preset.experiment, settings)
    wanted = [label for label in preset.paper if not settings.only or label in settings.only]
    if isinstance(preset, Relative):
        there = {label: records.runs[label] for label in wanted if label in records.runs}
        if preset.reference not in records.runs or not there:
            raise _nothing(preset, records)
        numbers, certified, verdicts = changes_from(records.runs[preset.reference], there, preset)
        labels, tuned = [preset.reference, *there], []
    else:
        named = {label: pair for label, pair in recorded_pairs(preset, records).items() if label in wanted}
        if not named:
            raise _nothing(preset, records)
        tuned = [records.tuned_group(*pair) for pair in named.values()]
        pairs = {
            label: (records.runs[first], group.runs)
            for (label, (first, _)), group in zip(named.items(), tuned, strict=True)
        }
        numbers, certified, verdicts = changes_by_training_on(pairs, preset)
        labels = list(dict.fromkeys(first for first, _ in named.values()))
    missing = [label for label in wanted if label not in {number.row for number in numbers}]
    notes = [
        f"scale {records.scale}: {records.experiment.note(records.scale)}",
        *verdicts,
        *([f"no runs on record: {', '.join(missing)}"] if missing else []),
        *records.unsettled(labels),
        *unsettled(tuned),
    ]
    return Reproduced(name, preset, numbers, notes, certified)


def recorded_pairs(preset: Finetune, records: OnRecord) -> dict[str, tuple[str, str]]:
    """By label of the figure: which algorithm trained first, and which trained on; those on record."""
    pairs = {label: (preset.start or label, preset.end or label) for label in preset.paper}
    return {label: pair for label, pair in pairs.items() if pair[0] in records.runs and pair in records.tuned}


def _number(label: str, change: float, preset: Relative | Finetune) -> Number:
    return Number(label, "relative change", 100 * change, paper=preset.paper[label])


def _nothing(preset: Relative | Finetune, records: OnRecord) -> DataError:
    there = [*records.runs, *(f"{first} then {then}" for first, then in records.tuned)]
    return DataError(
        f"the records at scale {records.scale} have too few runs for {preset.title}; there is: {', '.join(there)}. "
        "Leave --records out to train what is missing."
    )

"""Certificates as text."""

from collections.abc import Sequence
from pathlib import Path

from propfair.cli.display import print_json, print_table
from propfair.cli.options import Format
from propfair.runs.certificate import Certified

_SHOWN_CLIENTS = 20
_SHOWN_MODELS = 6


def print_certificate(certified: Certified, picture: Path | None, output: Format) -> None:
    """The sums with their intervals, the change for each client where there are few, and the verdict."""
    if output == Format.json:
        print_json({**certified.as_dict(), "picture": None if picture is None else str(picture)})
        return
    found = certified.certificate
    level = 100 * certified.verdict.level
    rows = [
        [
            name, _percent(value), "-" if interval is None else str(interval), f"{int((changes > 0).sum())}",
            f"{int((changes < 0).sum())}", _percent(changes.min()), _percent(changes.max()),
        ]
        for name, value, interval, changes in zip(
            found.names, found.values, certified.intervals, found.relative, strict=True
        )
    ]  # fmt: skip
    over = {interval.source for interval in certified.intervals if interval and interval.over != "nothing"}
    same = any(interval is not None and interval.over == "nothing" for interval in certified.intervals)
    print_table(
        f"If the clients of {certified.reference.label} were served by another model ({certified.utility})",
        ["model", "change", f"{level:g} % interval", "gain", "lose", "most lost", "most gained"],
        rows,
        caption=f"change: sum of p (u - u*) / u*{'' if found.alpha == 1 else f'^{found.alpha:g}'}"
        + (f"; intervals {' and '.join(sorted(over))}, all at once" if over else "")
        + ("; [0, 0]: the same numbers for every client" if same else ""),
    )
    if len(certified.clients) <= _SHOWN_CLIENTS and len(found.names) <= _SHOWN_MODELS:
        print_table(
            "Relative change of each client",
            ["client", "share", *found.names],
            [
                [client, f"{100 * share:.1f} %", *(_percent(change) for change in changes)]
                for client, share, changes in zip(certified.clients, found.shares, found.relative.T, strict=True)
            ],
        )
    if certified.num_excluded:
        print(f"left out: {certified.num_excluded} clients without a {certified.utility}")
    print(f"{certified.reference.label}: {certified.verdict}")
    for said in certified.unsettled:
        print(said)
    if certified.joining is not None:
        print(f"by joining: {certified.joining.words}")
    if picture is not None:
        print(f"picture: {picture}")


def panel_titles(certified: Certified) -> Sequence[str]:
    """Model and sum, for the panels of the picture."""
    found = certified.certificate
    return [f"{name}\n{_percent(value)} on average" for name, value in zip(found.names, found.values, strict=True)]


def _percent(value: float) -> str:
    return f"{100 * value:+.2f} %"

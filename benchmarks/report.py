"""Results as JSON, as tables in docs/performance.md and as a figure beside it."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from benchmarks import pages
from benchmarks.commands import BASE as TORCH
from benchmarks.commands import Timed
from benchmarks.growth import Point, exponent
from benchmarks.harness import Measured
from benchmarks.workloads import WORKLOADS
from propfair.core.precision import PRECISIONS
from propfair.report.drawing import COLOURS

BEGIN, END = "<!-- results: written by make bench -->", "<!-- end of results -->"
BASE, PEER = "bare", "pfl"
GOALS = {  # of propfair, by workload and precision: how many times as fast as whom
    ("W1", "float32"): (2.4, BASE), ("W1", "bf16"): (3.3, BASE),
    ("W1-loss", "float32"): (2.0, BASE), ("W1-loss", "bf16"): (2.8, BASE),
    ("W2", "float32"): (1.3, PEER), ("W2", "bf16"): (1.6, PEER),
    ("W3", "float32"): (25.0, BASE), ("W3-mlp", "float32"): (10.0, BASE),
    ("W4", "float32"): (1.4, PEER), ("W4", "bf16"): (1.5, PEER),
}  # fmt: skip


@dataclass
class Results:
    """One run of the benchmark."""

    date: str
    machine: Mapping[str, str]
    repeats: int
    seconds: float
    measured: list[Measured] = field(default_factory=list)
    growth: list[Point] = field(default_factory=list)
    overhead: dict[int, float] = field(default_factory=dict)  # examples of a client -> share of the time
    commands: list[Timed] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Results":
        """The inverse of `save`."""
        content = json.loads(path.read_text(encoding="utf-8"))
        content["measured"] = [Measured(**item) for item in content["measured"]]
        content["growth"] = [Point(**item) for item in content["growth"]]
        content["commands"] = [Timed(**item) for item in content.get("commands", [])]
        content["overhead"] = {int(count): share for count, share in content["overhead"].items()}
        return cls(**content)

    def check_addable_to(self, others: "Results") -> None:
        """Only results of the same machine and with as many turns stand in one table."""
        if (self.machine, self.repeats) != (others.machine, others.repeats):
            raise ValueError(
                f"results can only be added to results of the same machine and as many turns; found {others.machine} "
                f"with {others.repeats}, and now {self.machine} with {self.repeats}"
            )

    def added_to(self, others: "Results") -> "Results":
        """With whatever was not measured anew taken from others, of the same machine."""
        self.check_addable_to(others)
        new, order = {m.workload for m in self.measured}, list(WORKLOADS)
        measured = [*self.measured, *(m for m in others.measured if m.workload not in new)]
        return replace(
            self,
            measured=sorted(measured, key=lambda m: order.index(m.workload)),
            growth=self.growth or others.growth,
            overhead=self.overhead or others.overhead,
            commands=self.commands or others.commands,
        )

    def speed(self, workload: str, contestant: str) -> float:
        """Median examples per second; 0 if it was not measured."""
        found = (m for m in self.measured if (m.workload, m.contestant) == (workload, contestant))
        return next((m.speed for m in found), 0.0)


def markdown(results: Results) -> str:
    """All tables."""
    parts = [_machine(results), _speeds(results)]
    if results.overhead:
        shares = " and ".join(f"{100 * share:.1f} % with {count:,}" for count, share in results.overhead.items())
        parts.append(
            f"Outside forward pass, backward pass and SGD propfair spends, on W1 in one process with one thread, "
            f"{shares} examples of each client."
        )
    if results.commands:
        parts.append(_commands(results.commands))
    if results.growth:
        parts.append(_growth(results.growth))
    return "\n\n".join(parts)


def _machine(results: Results) -> str:
    described = ", ".join(f"{name} {value}" for name, value in results.machine.items())
    return (
        f"Measured {results.date} on {described}. Contestants took turns of about {results.seconds:g} s, "
        f"{results.repeats} each; medians, and in brackets the slowest and the fastest turn. Start-up is the time from "
        "an empty process to the end of the first round; peak memory is the proportional set size of all processes "
        "of a contestant, running alone."
    )


def _speeds(results: Results) -> str:
    columns = ["examples/s", f"times {BASE}", f"times {PEER}", "goal", "start-up", "peak memory"]
    rows = [["work", "contestant", "precision", *columns]]
    for workload in dict.fromkeys(m.workload for m in results.measured):
        others = [results.speed(workload, other) for other in (BASE, PEER)]
        for m in (m for m in results.measured if m.workload == workload):
            name, precision = split_precision(m.contestant)
            if m.error:
                outcome = "failed" if m.offered else "no such algorithm"
                rows.append([workload, name, precision, outcome, *[""] * (len(columns) - 1)])
                continue
            ratios = [f"{m.speed / other:.2f}" if other else "" for other in others]
            goal = GOALS.get((workload, precision)) if name == "propfair" else None
            wanted = f">= {goal[0]:g} {goal[1]}" if goal else ""
            spread = f"{m.speed:,.0f} ({min(m.speeds):,.0f}-{max(m.speeds):,.0f})"
            memory = f"{m.peak_bytes / 2**20:,.0f} MiB"
            rows.append([workload, name, precision, spread, *ratios, wanted, f"{m.startup:.1f} s", memory])
    measured = {m.workload for m in results.measured}
    legend = [f"- {w.name}: {w.title}" for w in WORKLOADS.values() if w.name in measured]
    return _table(rows) + "\n\n" + "\n".join(legend)


def split_precision(contestant: str) -> tuple[str, str]:
    """`propfair:bf16` is propfair in bf16; whoever says nothing computes in float32."""
    name, _, option = contestant.partition(":")
    return (name, option) if option in PRECISIONS else (contestant, "float32")


def _commands(commands: Sequence[Timed]) -> str:
    rows = [["command", "processor time", "beyond `import torch`", "seconds"]]
    base = next((timed.processor for timed in commands if timed.name == TORCH), 0.0)
    for timed in commands:
        beyond = "" if timed.name == TORCH else f"{timed.processor - base:.1f} s"
        rows.append([timed.name, f"{timed.processor:.1f} s", beyond, f"{timed.seconds:.1f} s"])
    return "Whole commands, from an empty process to their end:\n\n" + _table(rows)


def _growth(points: Sequence[Point]) -> str:
    text = ["How propfair grows (logistic regression; for parameters, one hidden layer of growing width):"]
    for axis in dict.fromkeys(p.axis for p in points):
        own = [p for p in points if p.axis == axis]
        rows = [[axis, "seconds a round", "start-up", "peak memory"]]
        rows += [
            [f"{p.value:,}", f"{p.round_seconds:.4f}", f"{p.startup:.1f} s", f"{p.peak_bytes / 2**20:,.0f} MiB"]
            for p in own
        ]
        values = [p.value for p in own]
        slopes = {
            "time": exponent(values, [p.round_seconds for p in own]),
            "memory": exponent(values, [p.peak_bytes for p in own]),
        }
        fitted = ", ".join(f"{what} ~ {axis}^{slope:.2f}" for what, slope in slopes.items())
        text += [_table(rows), f"Fitted: {fitted}."]
    return "\n\n".join(text)


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    rule = ["---"] * 2 + ["---:"] * (len(head) - 2) if len(head) > 4 else ["---:"] * len(head)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *body))


def write_page(results: Results, page: Path, figure: Path | None) -> None:
    """Put the tables between the two marks of the page."""
    shown = f"\n\n![Speed and growth]({figure.name})" if figure else ""
    pages.put(page, BEGIN, END, f"{markdown(results)}{shown}")


def draw(results: Results, path: Path) -> None:
    """Speed against the bare loop for each workload, and growth."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "propfair"  # the same results give the same file
    from matplotlib import pyplot

    workloads = list(dict.fromkeys(m.workload for m in results.measured))
    contestants = [name for name in dict.fromkeys(m.contestant for m in results.measured) if name != BASE]
    axes_of_growth = list(dict.fromkeys(p.axis for p in results.growth))
    figure = pyplot.figure(figsize=(8, 6 if axes_of_growth else 3.2), layout="constrained")
    grid = figure.add_gridspec(2 if axes_of_growth else 1, max(1, len(axes_of_growth)))
    speed = figure.add_subplot(grid[0, :])
    width = 0.8 / max(1, len(contestants))
    for number, contestant in enumerate(contestants):
        times_bare = [results.speed(w, contestant) / (results.speed(w, BASE) or math.inf) for w in workloads]
        places = [i + (number + 0.5) * width - 0.4 for i in range(len(workloads))]
        heights = [height or math.nan for height in times_bare]  # not measured: no bar
        bars = speed.bar(places, heights, width, label=contestant, color=COLOURS[number])
        said = [f"{height:.2g}" if height else "" for height in times_bare]
        speed.bar_label(bars, said, fontsize="x-small", padding=1)
    speed.set_xticks(range(len(workloads)), workloads)
    speed.set_yscale("log")
    speed.margins(y=0.12)
    speed.axhline(1.0, color="black", linewidth=0.8)
    speed.set_ylabel("speed, times the bare loop")
    speed.legend(fontsize="small")
    for number, axis in enumerate(axes_of_growth):
        pane = figure.add_subplot(grid[1, number])
        own = [p for p in results.growth if p.axis == axis]
        values = [p.value for p in own]
        pane.loglog(values, [p.round_seconds for p in own], "o-", label="seconds a round", color=COLOURS[0])
        pane.loglog(values, [p.peak_bytes / 2**30 for p in own], "s--", label="peak memory, GiB", color=COLOURS[1])
        pane.set_xlabel(axis)
        pane.set_ylim(1e-4, 10)
        if number == 0:
            pane.legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)

"""Run folders without training: written by the same code as real ones, with numbers from a formula."""

from pathlib import Path

import numpy as np
import torch

from propfair.core.aggregator import Outcome
from propfair.core.evaluation import Evaluation
from propfair.core.messages import Reports
from propfair.federation.federation import Split
from propfair.runs.checkpoints import Checkpoint
from propfair.runs.folder import RunFolder
from propfair.runs.records import Records
from propfair.runs.run import RunState


def write_run(
    path: Path,
    *,
    name: str = "fedavg",
    seed: int = 0,
    num_clients: int = 10,
    rounds: int = 10,
    eval_every: int = 5,
    skill: float = 0.7,
    spread: float = 0.2,
    state: RunState = "finished",
    algorithm: str = "fedavg",
    settings: str = "",
    clients: tuple[str, ...] | None = None,
    note: str = "ten fair coins",
    classes: int = 4,
    accuracy: list[float] | None = None,
    personal: bool = False,
    config: str | None = None,
    odd_weights: bool = False,
    splits: tuple[Split, ...] = ("test",),
    engine: str = "inprocess",
    start: dict[str, object] | None = None,
    started: str = "2026-01-01T00:00:00+00:00",
    cohort: int | None = None,
    answers: bool = False,
) -> Path:
    """A run whose client k ends at about skill + spread * (k / n - 1/2); `accuracy` sets the end exactly.

    All clients take part in a round, or `cohort` of them. With `odd_weights` the first client weighs a thousand times
    its share in the last round, the second nothing, and the last one is absent from the first round. With `answers` it
    also says which test examples are answered right, as runs that were trained do.
    """
    rng = np.random.default_rng([seed, len(name), num_clients])
    total = 100
    sizes = [80 + 10 * (k % 3) for k in range(num_clients)]
    folder = RunFolder.create(
        path,
        name=name,
        config=config
        or f'seed = {seed}\n[data]\nname = "digits"\n[algorithm]\nname = "{algorithm}"\n{settings}\n'
        f'[engine]\nname = "{engine}"\n[schedule]\nrounds = {rounds}\n',
        environment={"propfair": "0.1.0", "python": "3.11", "packages": {"torch": "2.13"}, "git_commit": "a" * 40}
        | {
            "seed": seed,
            "engine": engine,
            "start": start,
            "command": ["propfair", "compare", "fedavg"],
            "started": started,
        },
        clients={
            "fingerprint": f"{num_clients:016d}",
            "note": note,
            "names": list(clients or map(str, range(num_clients))),
            "num_classes": classes,
            "sizes": {"train": sizes, "test": [total] * num_clients}
            | {"validation": [total if "validation" in splits else 0] * num_clients},
            "train_labels": rng.multinomial(80, np.ones(classes) / classes, num_clients).tolist(),
        },
    )
    records = Records(name)
    end = skill + spread * (np.arange(num_clients) / num_clients - 0.5) + rng.normal(0, 0.02, num_clients)
    goal = np.array(accuracy) if accuracy is not None else np.round(end.clip(0.01, 1) * total) / total
    share = np.array(sizes) / sum(sizes)
    done = rounds if state == "finished" else rounds // 2
    for number in range(1, done + 1):
        chosen = np.arange(num_clients) if cohort is None else rng.choice(num_clients, cohort, replace=False)
        if odd_weights and number == 1:
            chosen = chosen[:-1]
        weights = share[chosen] * np.exp(rng.normal(0, 0.1, len(chosen)))
        if odd_weights:
            weights[0] *= 1000 if number == done else 1
            weights[1:2] = 0
        records.add_outcome(
            Outcome(
                round=number, clients=tuple(chosen.tolist()), weights=torch.tensor(weights / weights.sum()),
                loss=torch.full((len(chosen),), torch.nan), dropped=(), reports=Reports.of([]),
                diagnostics={"weight_sum": 1.0},
            )
        )  # fmt: skip
        if number % eval_every == 0 or number == rounds:
            reached = torch.tensor(goal * number / rounds)
            for prefix in ("", "personal_")[: 1 + personal]:
                for split in splits:
                    seen = Evaluation(2 - reached, reached, torch.full_like(reached, total))
                    records.add_evaluation(number, split, seen, prefix)
    if answers:
        counts = np.round(goal * total)[:, None]
        right = np.random.default_rng(seed).random((num_clients, total)).argsort(axis=1) < counts  # so many of each
        reached = torch.tensor(goal)
        last = Evaluation(reached, reached, torch.full((num_clients,), total), right=torch.tensor(right.ravel()))
        records.add_answers(done, "test", last)
    folder.save_checkpoint(Checkpoint(done, {"params": torch.zeros(1)}), records)
    if state == "running":
        folder.save_status(state, done, seconds=float(done))
    else:
        folder.finish(state, done, "", seconds=float(done))
    return path

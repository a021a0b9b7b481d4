"""100,000 rounds of the smallest run, with the default checkpoints: what a round, the memory and the folder come to.

`python -m benchmarks.long_run --rounds 100000 --out FOLDER` prints one line for every tenth of the rounds: seconds of
processor time a round, memory of the process, files in the folder. Then the time that it takes to open the folder.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.memory import pss
from propfair.runs.config import make_config
from propfair.runs.launch import run
from propfair.runs.progress import Progress
from propfair.runs.reading import read_run

SETTINGS = ("data=synthetic", "data.num_clients=2", "model=logistic", "algorithm=fedavg", "local.steps=1")
SETTINGS += ("local.batch_size=8", "engine=inprocess")
PARTS = 10


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    out = arguments.out or Path(tempfile.mkdtemp()) / "long"
    part = arguments.rounds // PARTS
    began = time.process_time()

    def after_round(now: Progress) -> None:
        nonlocal began
        if now.round % part == 0:
            ended = time.process_time()
            files = sum(1 for path in out.rglob("*") if path.is_file())
            print(
                f"rounds {now.round - part + 1:,} to {now.round:,}: {1000 * (ended - began) / part:.2f} ms a round, "
                f"{pss(os.getpid()) / 1e6:.0f} MB, {files} files",
                flush=True,
            )
            began = time.process_time()

    run(make_config({}, [*SETTINGS, f"schedule.rounds={arguments.rounds}"]), out, after_round=after_round)
    files = [path for path in out.rglob("*") if path.is_file()]
    began = time.process_time()
    read_run(out).summary()
    print(
        f"finished: {len(files)} files, {sum(path.stat().st_size for path in files) / 1e6:.1f} MB, "
        f"read and summed up in {time.process_time() - began:.2f} s"
    )


if __name__ == "__main__":
    main()

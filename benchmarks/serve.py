"""The process of a contestant: `python -m benchmarks.serve NAME WORKLOAD READ_FD WRITE_FD`.

After the first round it says so; then it waits for lines: the number of rounds to run next. It answers each with the
number of examples trained. The end of input ends the process. A contestant without an algorithm for the work
raises NotImplementedError, which is passed on.
"""

import importlib
import json
import os
import sys
from typing import IO

from benchmarks.workloads import find


class Gate:
    """Called after each round; lets the next one start when it is this contestant's turn."""

    def __init__(self, commands: IO[str], answers: IO[str]) -> None:
        self._commands, self._answers = commands, answers
        self._left, self._examples = 1, 0

    def __call__(self, examples: int) -> None:
        """A round with so many examples is done."""
        self._left -= 1
        self._examples += examples
        if self._left:
            return
        print(json.dumps({"examples": self._examples}), file=self._answers, flush=True)
        command = self._commands.readline()
        if not command:
            os._exit(0)  # threads and child processes of a contestant must not keep it alive
        self._left, self._examples = int(command), 0


def main() -> None:
    """Import the contestant and let it compete. `propfair:processes` passes `processes` on to it."""
    who, workload, read_fd, write_fd = sys.argv[1:]
    name, _, option = who.partition(":")
    contestant = importlib.import_module(f"benchmarks.contestants.{name}")
    with os.fdopen(int(read_fd)) as commands, os.fdopen(int(write_fd), "w") as answers:
        try:
            contestant.compete(find(workload), Gate(commands, answers), *filter(None, [option]))
        except NotImplementedError as error:
            print(json.dumps({"not_offered": str(error)}), file=answers, flush=True)


if __name__ == "__main__":
    main()

"""Runs that are larger than a table of clients times rounds could be."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.report.builders import write_run


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "wait4"), reason="asks the system for the memory of a child")
def test_a_report_on_20000_clients_and_20000_rounds(tmp_path: Path) -> None:
    write_run(tmp_path / "large", num_clients=20_000, rounds=20_000, eval_every=1000, cohort=20)
    child = subprocess.Popen([sys.executable, "-m", "propfair", "report", "large"], cwd=tmp_path)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)  # it has been waited for
    assert child.returncode == 0
    assert usage.ru_maxrss < 1.5e6  # KB; a table of the weights alone would take 3.2 GB
    page = (tmp_path / "report.html").read_text()
    assert len(page) < 40e6
    assert '"thinned": true' in page or '"thinned":true' in page, "and it says so"

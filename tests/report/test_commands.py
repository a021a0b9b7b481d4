"""`propfair report`, `figure`, `compare` and `reproduce`, as typed."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.report.builders import write_run


def propfair(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "propfair", *arguments],
        cwd=cwd, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_report_and_figure(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", name="a", algorithm="a")
    write_run(tmp_path / "runs" / "b", name="b", algorithm="b")
    done = propfair("report", "runs", "gone", "-o", "out/page.html", "--title", "My & yours", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "report: out/page.html (2 runs)\n"
    assert done.stderr == "warning: gone: there is no such folder\n"
    assert "<title>My &amp; yours</title>" in (tmp_path / "out" / "page.html").read_text()
    done = propfair("figure", "certificate", "runs", "-o", "pf.svg", cwd=tmp_path)
    assert done.stdout == "figure: pf.svg\n", done.stderr
    assert (tmp_path / "pf.svg").read_text().startswith("<?xml")


def test_certify_says_what_may_have_been_meant(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / "runs" / name, name=name, algorithm=name)
    propfair("keep", "runs", "-o", "kept.parquet", cwd=tmp_path)
    stopped = "error: {} is not a run folder: it has no status.json. {}\n"
    assert propfair("certify", "runs", cwd=tmp_path).stderr == stopped.format(
        "runs", "There are runs below it: name them, such as runs/a"
    )
    assert propfair("certify", "kept.parquet", cwd=tmp_path).stderr == stopped.format(
        "kept.parquet", "This is a file; of kept runs there are reports, tables, figures and certificates (--of)"
    )
    done = propfair("certify", "runs/a", "runs/a", cwd=tmp_path)
    assert "change: sum of p (u - u*) / u*; [0, 0]: the same numbers for every client" in done.stdout


def test_certify_finds_a_model_by_its_name(tmp_path: Path) -> None:
    for seed in range(2):
        for name, offset in (("fedavg", 0), ("term", 1), ("afl", 2)):
            path = tmp_path / "runs" / f"{name}{seed}"
            write_run(path, skill=0.5 + offset / 10, name=f"{name}-seed{seed}", algorithm=name, seed=seed)
    propfair("keep", "runs", "-o", "kept.parquet", cwd=tmp_path)
    asked = {}
    for place in "runs", "kept.parquet":
        done = propfair("certify", place, "--of", "term", "--format", "json", cwd=tmp_path)
        asked[place] = json.loads(done.stdout)
        assert asked[place]["reference"] == "term"
        assert [one["model"] for one in asked[place]["against"]] == ["afl", "fedavg"]
    assert [one["value"] for one in asked["runs"]["against"]] == [
        one["value"] for one in asked["kept.parquet"]["against"]
    ]
    write_run(tmp_path / "runs" / "broken", name="afl-seed7", algorithm="afl", seed=7, state="failed")
    done = propfair("certify", "runs", "--of", "term", cwd=tmp_path)
    assert done.stderr == "warning: left out, since they did not finish: afl-seed7\n"
    stopped = propfair("certify", "kept.parquet", "--of", "terms", cwd=tmp_path).stderr
    assert stopped == "error: unknown model 'terms'. Did you mean 'term'? Known: afl, fedavg, term.\n"
    assert "kept runs have none" in propfair("certify", "kept.parquet", "--of", "term", "--paired", cwd=tmp_path).stderr
    write_run(tmp_path / "other", num_clients=4, algorithm="term", name="term")
    stopped = propfair("certify", "runs", "other", "--of", "term", cwd=tmp_path).stderr
    assert "'term' is the name of 2 models: term on " in stopped


def test_a_report_is_a_page(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    done = propfair("report", "a", "-o", "page.pdf", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: a report is an HTML page: give a path that ends in .html; got page.pdf\n"
    assert not (tmp_path / "page.pdf").exists()


def test_a_report_on_nothing_is_written_and_fails(tmp_path: Path) -> None:
    done = propfair("report", "gone", cwd=tmp_path)
    assert done.returncode == 1
    assert "there is no such folder" in done.stderr
    assert "there is no such folder" in (tmp_path / "report.html").read_text()


def test_compare_ends_with_its_report(tmp_path: Path) -> None:
    done = propfair(
        "compare", "fedavg", "propfair", "data.num_clients=4", "schedule.rounds=2", "model=logistic", "-o", "both",
        "--format", "json", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["report"] == "both/report.html"
    page = (tmp_path / "both" / "report.html").read_text()
    assert '"label":"propfair"' in page


def test_reproduce_ends_with_its_report(tmp_path: Path) -> None:
    done = propfair(
        "reproduce", "figure2", "--scale", "smoke", "--only", "fedavg,propfair", "-q", "-o", "redone", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "report: redone/figure2.html"
    page = (tmp_path / "redone" / "figure2.html").read_text()
    assert '"label":"propfair' in page
    assert page.count('"state":"finished"') == 2  # without those that values were chosen by

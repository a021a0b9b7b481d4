"""`make docs`: the site builds without a warning, shows formulas, asks nobody, and knows every algorithm."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from propfair.algorithms import ALGORITHMS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_algorithm_and_command_is_on_it(site: Path) -> None:
    algorithms = (site / "reference" / "algorithms.html").read_text(encoding="utf-8")
    for name in ALGORITHMS.names():
        assert f"<code>{name}</code>" in algorithms
    commands = (site / "reference" / "cli.html").read_text(encoding="utf-8")
    for name in ("run", "compare", "report", "watch", "figure"):
        assert f"propfair {name}" in commands


def test_notebooks_are_on_it(site: Path) -> None:
    page = (site / "notebooks" / "first-steps.html").read_text(encoding="utf-8")
    assert "First steps" in page
    assert "propfair" in page
    assert (site / "notebooks" / "first-steps.ipynb").exists()


def test_the_gallery_shows_every_file_of_records(site: Path) -> None:
    page = (site / "gallery.html").read_text(encoding="utf-8")
    for records in (ROOT / "results").glob("*.parquet"):
        assert f"results/{records.name}" in page
        assert f'src="gallery/{records.stem}.svg"' in page
        assert f'href="gallery/{records.stem}.html"' in page
        assert (site / "gallery" / f"{records.stem}.svg").read_text(encoding="utf-8").lstrip().startswith("<?xml")
        assert "<script" in (site / "gallery" / f"{records.stem}.html").read_text(encoding="utf-8")


def test_formulas_are_drawn_by_the_browser_itself(site: Path) -> None:
    tutorial = (site / "tutorial.html").read_text(encoding="utf-8")
    assert '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">' in tutorial
    for page in site.rglob("*.html"):
        assert "arithmatex" not in page.read_text(encoding="utf-8"), page


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    fetched = re.compile(r'<(?:script|img|link rel="(?:stylesheet|preconnect)")[^>]*(?:src|href)="(?:https?:)?//[^"]*"')
    for page in site.rglob("*.html"):
        assert not fetched.findall(page.read_text(encoding="utf-8")), page

"""The wheel in an environment of its own without extras: it trains, and what needs an extra says which in one line.

By default the core dependencies are linked from the environment that runs the tests; the slow variant installs them.
"""

import json
import re
import tomllib
import zipfile
from pathlib import Path

import pytest

import propfair
from tests.install.places import ROOT, Place, build_wheel, needed_by

pytestmark = pytest.mark.timeout(600)

EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
NOT_TRIED = {"all", "dev", "docs", "lora"}  # nothing in the library asks for lora: it is for an example
TINY = ["data=synthetic", "data.num_clients=4", "model=logistic", "schedule.rounds=1"]

TRAIN = """
import torch, propfair
clients = [(torch.randn(20, 4), torch.arange(20) % 2) for _ in range(3)]
result = propfair.train(torch.nn.Linear(4, 2), clients, "propfair", rounds=2)
"""

# What needs each extra: a command, or Python.
COMMANDS = {
    "data": ["run", "data=digits"],
    "plot": ["figure", "lorenz", "first", "-o", "lorenz.png"],
    "report": ["report", "first", "-o", "report.html"],
    "ray": ["run", *TINY, "engine=ray"],
    "sweep": ["sweep", "sweep.toml"],
    "tensorboard": ["run", *TINY, "--log", "tensorboard"],
    "metrics": ["run", *TINY, 'metrics=["f1"]'],
    "mlflow": ["run", *TINY, "--log", "mlflow"],
    "wandb": ["run", *TINY, "--log", "wandb"],
}
PYTHON = {
    "flower": "import propfair.flower",
    "solvers": "from propfair.fairness import Hull, nash_bargaining; nash_bargaining(Hull([[1.0, 0.5], [0.5, 1.0]]))",
    "pandas": f"{TRAIN}\nresult.to_pandas()",
    "polars": f"{TRAIN}\nresult.to_polars()",
}
ALL_AT_ONCE = """
import contextlib, io, json, sys
from propfair.cli import main
from propfair.errors import MissingExtraError
commands, python = json.loads(sys.argv[1])
said = {}
for extra, arguments in commands.items():
    sys.argv = ["propfair", *arguments]
    stderr = io.StringIO()
    with contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(io.StringIO()):
        try:
            main()
        except SystemExit as end:
            said[extra] = [end.code, stderr.getvalue()]
for extra, code in python.items():
    try:
        exec(code)
    except MissingExtraError as error:
        said[extra] = [2, f"error: {error}\\n"]
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module", params=["linked", pytest.param("installed", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Place:
    made = Place(tmp_path_factory.mktemp("place"))
    if request.param == "linked":
        made.install("--no-deps", str(wheel))
        made.link(needed_by("propfair"))
    else:
        made.install("--constraint", str(ROOT / "constraints.txt"), str(wheel))
    done = made.run("propfair", "run", *TINY, "--out", "first")
    assert done.returncode == 0, done.stderr
    return made


def test_the_wheel_carries_everything_but_the_tests(wheel: Path) -> None:
    assert wheel.name.startswith(f"propfair-{propfair.__version__}-")
    files = set(zipfile.ZipFile(wheel).namelist())
    package = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*") if path.is_file()}
    assert {name for name in files if ".dist-info/" not in name} == {name for name in package if ".pyc" not in name}


def test_a_run_leaves_its_folder(place: Place) -> None:
    assert json.loads((place.work / "first" / "status.json").read_text())["state"] == "finished"


def test_training_from_python(place: Place) -> None:
    done = place.run("python", "-c", f"{TRAIN}\nprint(propfair.__version__, result.state, result.accuracy.shape[0])")
    assert done.stdout.split() == [propfair.__version__, "finished", "3"], done.stderr


def test_the_version_is_that_of_the_package(place: Place) -> None:
    code = "from importlib.metadata import version; print(version('propfair'))"
    assert place.run("python", "-c", code).stdout.strip() == propfair.__version__


def test_a_table_comes_without_its_picture(place: Place) -> None:
    done = place.run("propfair", "compare", "fedavg", "propfair", *TINY, "--out", "both")
    assert done.returncode == 0, done.stderr
    assert "worst10" in done.stdout
    for extra in ("plot", "report"):
        assert re.search(rf"^warning: .*: pip install 'propfair\[{extra}\]'$", done.stderr, re.MULTILINE)


def test_what_needs_an_extra_names_it_in_one_line(place: Place) -> None:
    (place.work / "sweep.toml").write_text('[algorithms.fedavg]\n"local.lr" = [0.1, 0.2]\n')
    done = place.run("python", "-c", ALL_AT_ONCE, json.dumps([COMMANDS, PYTHON]))
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said.keys() == {*COMMANDS, *PYTHON}
    for extra, (code, text) in said.items():
        assert code == 2, (extra, text)
        assert re.fullmatch(rf"error: .* needs .*: pip install 'propfair\[{extra}\]'\n", text), (extra, text)


def test_every_extra_is_tried_and_every_one_that_is_named_exists() -> None:
    assert {*COMMANDS, *PYTHON} == EXTRAS.keys() - NOT_TRIED
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r"MissingExtraError\([^)]*\"(\w+)\"\)|propfair\[(\w+)\]", sources))
    assert {name for either in named for name in either if name} <= EXTRAS.keys()
    assert EXTRAS["all"] == [f"propfair[{','.join(name for name in EXTRAS if name not in NOT_TRIED)}]"]

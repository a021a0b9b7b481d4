"""What users may import. A name that comes or goes is a decision: change public_names.txt and the changelog with it."""

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import propfair
from propfair.registry import Registry

SNAPSHOT = Path(__file__).with_name("public_names.txt").read_text(encoding="utf-8").split()
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of packages that rooms import
DOORS = list(dict.fromkeys(name.rpartition(".")[0] for name in SNAPSHOT))


@pytest.mark.parametrize("door", DOORS)
def test_a_door_offers_what_is_written_down(door: str) -> None:
    offered = sorted(f"{door}.{name}" for name in importlib.import_module(door).__all__)
    written = [name for name in SNAPSHOT if name.rpartition(".")[0] == door]
    assert offered == written


@pytest.mark.parametrize("door", DOORS)
def test_whatever_it_offers_is_there_and_explained(door: str) -> None:
    room = importlib.import_module(door)
    assert room.__doc__
    for name in room.__all__:
        thing = getattr(room, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), f"{door}.{name}"


@pytest.mark.parametrize("door", DOORS)
def test_every_registered_part_comes_through_its_door(door: str) -> None:
    room = importlib.import_module(door)
    for registry in [thing for thing in vars(room).values() if isinstance(thing, Registry)]:
        for name in registry.names():
            part = registry.get(name)
            if part.__module__.startswith("propfair."):
                assert getattr(room, part.__name__, None) is part, f"{door} lacks {part.__name__}"
                assert part.__name__ in room.__all__


def test_all_rooms_for_users_have_one() -> None:
    rooms = "algorithms data engines fairness federation flower models paper report runs tuning"
    assert set(DOORS) == {"propfair", *(f"propfair.{room}" for room in rooms.split())}


@pytest.mark.slow
def test_a_run_imports_no_more_than_it_needs(tmp_path: Path) -> None:
    code = (
        "import sys; from propfair.runs.config import make_config; from propfair.runs.launch import run; "
        f"from pathlib import Path; run(make_config({{}}, ['schedule.rounds=1']), Path({str(tmp_path / 'run')!r})); "
        "print(*sorted({'pandas', 'pyarrow.compute', 'optuna', 'matplotlib', 'scipy', 'sklearn'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == []


def test_the_first_door_opens_at_once() -> None:
    code = "import sys, propfair; print(*sorted({'torch', 'numpy', 'pydantic', 'pyarrow'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == []
    assert set(dir(propfair)) == {*propfair.__all__, "__version__"}
    with pytest.raises(AttributeError, match="has no attribute 'Propfair'"):
        propfair.Propfair  # noqa: B018

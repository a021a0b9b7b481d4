"""docs/architecture.md and its pictures do not drift from the code: files exist, and layers are those that are held."""

import re
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "propfair"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PICTURES = [ROOT / "docs" / "images" / name for name in ("round.svg", "run.svg")]


def contract() -> dict[str, object]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (found,) = settings["tool"]["importlinter"]["contracts"]
    return dict(found)


def written(picture: Path) -> list[str]:
    return ["".join(text.itertext()) for text in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")]


def test_the_table_has_the_layers_that_are_held_in_their_order() -> None:
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| ", PAGE, re.MULTILINE)
    shown = [set(re.findall(r"`(\w+)`", row)) for row in rows]
    layers = contract()["layers"]
    assert isinstance(layers, list)
    assert shown == [set(layer.split(" | ")) for layer in layers]


def test_no_room_is_left_out() -> None:
    """`exhaustive` makes import-linter refuse a room that is in no layer; the page follows from the layers."""
    assert contract()["exhaustive"] is True
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    for room in rooms - {"__init__", "__main__"}:
        assert f"`{room}`" in PAGE, room


def test_files_on_the_page_exist() -> None:
    named = {name for name in re.findall(r"`([\w/]+(?:\.py|/\w*))`", PAGE) if not name.startswith("src/")}
    assert len(named) > 20
    for name in named:
        assert (PACKAGE / name).exists(), name


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_files_in_pictures_exist(picture: Path) -> None:
    named = [text for text in written(picture) if text.endswith(".py")]
    assert len(named) > 5
    for name in named:
        assert (PACKAGE / name).is_file(), name


def test_functions_in_pictures_exist() -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    for picture in PICTURES:
        words = re.findall(r"\b(?:[A-Z]\w+\.)?[a-z]+_?[a-z]*\b", " ".join(written(picture)))
        for name in {word.split(".")[1] for word in words if "." in word and not word.endswith(".py")}:
            assert any(f"def {name}(" in text for text in sources.values()), name


def test_pictures_are_read_out_and_fetch_nothing() -> None:
    for picture in PICTURES:
        tree = ElementTree.parse(picture).getroot()
        assert tree.get("role") == "img"
        assert tree.find("{http://www.w3.org/2000/svg}title") is not None
        text = picture.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http" not in text
        assert "<script" not in text

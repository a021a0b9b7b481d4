"""Names for interchangeable parts, also from other packages."""

from dataclasses import dataclass
from importlib import metadata

import pytest

from propfair.algorithms.base import ALGORITHMS, Algorithm
from propfair.errors import ConfigError
from propfair.registry import Registry, fields_of


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part."""

    needed: int
    size: float = 2.0
    presets = {"big": {"size": 9.0, "needed": 1}}  # noqa: RUF012


def registry() -> Registry[Part]:
    parts: Registry[Part] = Registry("part", "propfair.errors", "propfair.test-parts")
    parts.register("plain")(Part)
    return parts


def test_make_converts_text_and_fields_of_gives_it_back() -> None:
    part = registry().make("plain", {"needed": "3", "size": "0.5"})
    assert part == Part(needed=3, size=0.5)
    assert registry().make("plain", fields_of(part)) == part


def test_presets_are_bundles_and_single_options_win() -> None:
    assert registry().make("plain", {"preset": "big"}) == Part(needed=1, size=9.0)
    assert registry().make("plain", {"preset": "big", "size": 1}) == Part(needed=1, size=1.0)
    with pytest.raises(ConfigError, match="unknown preset of part 'plain': 'huge'"):
        registry().make("plain", {"preset": "huge"})


def test_missing_and_unknown_options() -> None:
    with pytest.raises(ConfigError, match="part 'plain' needs a value for: needed"):
        registry().make("plain")
    with pytest.raises(ConfigError, match="Did you mean 'size'"):
        registry().make("plain", {"needed": 1, "sise": 2})


def test_two_parts_of_one_name_are_refused() -> None:
    parts = registry()

    @dataclass(frozen=True)
    class Other:
        pass

    with pytest.raises(ConfigError, match="two parts are called 'plain'"):
        parts.register("plain")(Other)


def test_a_former_name_is_understood_and_never_written() -> None:
    parts: Registry[Part] = Registry("part", "propfair.errors", "propfair.test-parts")
    parts.register("new", formerly="old")(Part)
    assert parts.get("old") is parts.get("new") is Part
    assert parts.make("old", {"needed": 1}) == parts.make("new", {"needed": 1})
    assert parts.names() == ["new"]
    assert Part.name == "new"  # type: ignore[attr-defined]


def test_parts_of_other_packages_come_in_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = metadata.EntryPoint("foreign", "tests.unit.test_registry:Part", "propfair.test-parts")
    monkeypatch.setattr(metadata, "entry_points", lambda: metadata.EntryPoints([entry]))
    monkeypatch.syspath_prepend("elsewhere")  # on another path there is another set of packages
    assert registry().names() == ["foreign", "plain"]


def test_every_file_of_the_algorithms_package_is_found() -> None:
    assert {"fedavg", "propfair"} <= set(ALGORITHMS.names())
    for name in ALGORITHMS.names():
        assert issubclass(ALGORITHMS.get(name), Algorithm)

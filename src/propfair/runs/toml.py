"""Settings as TOML files, and as dotted keys."""

import datetime
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from propfair.errors import ConfigError, DataError, shown
from propfair.files import read_text

SECTIONS = ("data", "algorithm", "local", "server", "engine", "schedule")  # a run from Python names its model
_DEEPEST = 50


def read_toml(path: Path | None) -> dict[str, Any]:
    """The content of a TOML file; empty for None."""
    if path is None:
        return {}
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"can't read the config {path}: {error}") from None
    return parse_toml(text, str(path))


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """The content of a TOML text; `where` it stands is for the error."""
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a ValueError, 3,000 brackets the other
        raise ConfigError(f"{where} is not valid TOML: {error}") from None
    _check_plain(content, where)
    return content


def _check_plain(content: dict[str, Any], where: str) -> None:
    """No setting is a date, and none is nested deeply: a key of 3,000 dots is valid TOML."""
    level: list[Any] = [content]
    for _ in range(_DEEPEST):
        if any(isinstance(value, datetime.date | datetime.time) for value in level):
            raise ConfigError(f"{where}: settings can't be dates or times; put them in quotes to make them texts")
        level = [inner for value in level for inner in _inside(value)]
    if level:
        raise ConfigError(f"{where}: settings are nested at most {_DEEPEST} deep")


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def check_saved(text: str, where: str) -> None:
    """Hold the config of a run to what propfair writes: TOML, with a table for each section. Else a `DataError`."""
    try:
        content = parse_toml(text, where)
    except ConfigError as error:
        raise DataError(str(error)) from None
    _check_sections(content, where)


def check_settings(content: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run that has no config, held to the same."""
    _check_plain(content, "settings")
    _check_sections(content, "settings")
    return content


def _check_sections(content: Mapping[str, Any], where: str) -> None:
    for name in SECTIONS:
        if not isinstance(section := content.get(name, {}), dict):
            raise DataError(f"{where}: {name} must be a table of settings; got {name} = {shown(section)}")


def write_toml(content: Mapping[str, Any], prefix: str = "") -> str:
    """The text for nested tables of JSON values; what is None is left out.

    >>> print(write_toml({"seed": 0, "data": {"name": "digits", "folder": None}}))
    seed = 0
    <BLANKLINE>
    [data]
    name = "digits"
    <BLANKLINE>
    """
    plain = {key: value for key, value in content.items() if value is not None and not isinstance(value, dict)}
    tables = {key: value for key, value in content.items() if isinstance(value, dict)}
    lines = [f"{_key(key)} = {_value(value)}" for key, value in plain.items()]
    text = f"[{prefix}]\n" * bool(prefix and (plain or not tables)) + "".join(line + "\n" for line in lines)
    parts = [text] if text else []
    parts += [write_toml(value, f"{prefix}.{_key(key)}" if prefix else _key(key)) for key, value in tables.items()]
    return "\n".join(parts)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _value(value: Any) -> str:
    """A value in TOML, which is like JSON but for tables, and numbers that JSON has none of."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        inside = ", ".join(f"{_key(name)} = {_value(item)}" for name, item in value.items() if item is not None)
        return f"{{{inside}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # nan, inf, -inf
    if value is None:
        raise ConfigError("a list of settings can't hold None")
    return json.dumps(value)


def _text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"a setting is not valid Unicode: {shown(text)}") from None
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def flat(
    table: Mapping[str, Any], prefix: str = "", *, whole: Callable[[Any], bool] = lambda _: False
) -> dict[str, Any]:
    """Nested settings as dotted keys; tables that count as one value, by `whole`, stay as they are.

    >>> flat({"seed": 0, "data": {"name": "digits", "split": {"test": 0.2}}})
    {'seed': 0, 'data.name': 'digits', 'data.split.test': 0.2}
    """
    keys: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and not whole(value):
            keys |= flat(value, f"{prefix}{key}.", whole=whole)
        else:
            keys[prefix + key] = value
    return keys

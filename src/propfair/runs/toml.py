"""Settings as TOML files."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from propfair.errors import ConfigError


def read_toml(path: Path | None) -> dict[str, Any]:
    """The content of a TOML file; empty for None."""
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read the config {path}: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


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
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in plain.items()]
    text = f"[{prefix}]\n" * bool(prefix and (plain or not tables)) + "".join(line + "\n" for line in lines)
    parts = [text] if text else []
    parts += [write_toml(value, f"{prefix}.{key}" if prefix else key) for key, value in tables.items()]
    return "\n".join(parts)

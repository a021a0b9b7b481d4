"""Names of runs and their folders."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from propfair.algorithms.base import ALGORITHMS
from propfair.errors import ConfigError

if TYPE_CHECKING:
    from propfair.runs.config import RunConfig

RUNS = Path("runs")


def run_folder(config: "RunConfig") -> Path:
    """runs/digits-propfair-seed0, or the next free number behind it."""
    return free_folder(f"{config.data.name}-{config.parts.algorithm.name}-seed{config.seed}")


def free_folder(name: str) -> Path:
    """A folder below runs/ that does not exist yet."""
    wanted = RUNS / slug(name)
    number = 2
    path = wanted
    while path.exists():
        path, number = wanted.with_name(f"{wanted.name}-{number}"), number + 1
    return path


def algorithm_label(section: Mapping[str, Any]) -> str:
    """An algorithm, as a config names it, with those options that are not its defaults: propfair(M=2.0).

    Where a preset says it in fewer words, it is told from that: propfair(preset=paper, M=2.0). An algorithm that is not
    installed here is called by its name alone.
    """
    name = present_name(section)
    if name not in ALGORITHMS.names():
        return name
    kind = ALGORITHMS.get(name)
    usual = {option.name: _json(option.default) for option in ALGORITHMS.options(name)}
    chosen = {key: value for key, value in kind.as_named_today(section).items() if key in usual}
    told = [_changes(chosen, usual)]
    told += [[f"preset={preset}", *_changes(chosen, usual | _json(kind.presets[preset]))] for preset in kind.presets]
    shortest = min(told, key=len)
    return f"{name}({', '.join(shortest)})" if shortest else name


def _changes(chosen: Mapping[str, Any], usual: Mapping[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in chosen.items() if _json(value) != usual[key]]


def present_name(section: Mapping[str, Any]) -> str:
    """What the algorithm of a config is called now, if it has had another name; as it is written if it is not known."""
    written = str(section.get("name", ""))
    try:
        return ALGORITHMS.get(written).name
    except ConfigError:
        return written


def slug(text: str) -> str:
    """A text as a file name."""
    return re.sub(r"[^\w.+=-]+", "-", text).strip("-.") or "run"


def short_hash(text: str) -> str:
    """Eight letters that tell texts apart, for the name of a folder."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _json(value: Any) -> Any:
    """A value as it comes back from a file."""
    return json.loads(json.dumps(value, default=str))

"""`propfair list`: what there is to choose from."""

import dataclasses
import enum
from typing import Annotated, Any

import typer

from propfair.cli.app import app
from propfair.cli.options import Format, OutputFormat


class Kind(enum.StrEnum):
    """What can be listed."""

    algorithms = "algorithms"
    data = "data"
    models = "models"
    partitions = "partitions"
    engines = "engines"
    settings = "settings"


@app.command("list")
def list_parts(
    kind: Annotated[Kind | None, typer.Argument(help="Only these.", show_default=False)] = None,
    output: OutputFormat = Format.table,
) -> None:
    """Show algorithms, data sets, models, partitions and engines with their options and defaults, and all settings."""
    from propfair.algorithms.base import ALGORITHMS
    from propfair.cli.display import print_json, print_table
    from propfair.data.base import SOURCES
    from propfair.engines.session import ENGINES
    from propfair.federation.partition import PARTITIONERS
    from propfair.models.base import MODELS
    from propfair.registry import Registry
    from propfair.runs.settings import all_settings

    registries: dict[Kind, Registry[Any]] = {
        Kind.algorithms: ALGORITHMS,
        Kind.data: SOURCES,
        Kind.models: MODELS,
        Kind.partitions: PARTITIONERS,
        Kind.engines: ENGINES,
    }
    listing: dict[str, list[dict[str, Any]]] = {}
    for name, registry in registries.items():
        if kind in (None, name):
            listing[name.value] = [_entry(registry, part) for part in registry.names()]
    settings = all_settings() if kind in (None, Kind.settings) else []
    if output == Format.json:
        told = [{**one._asdict(), "default": _json(one.default)} for one in settings]
        print_json({**listing, **({"settings": told} if settings else {})})
        return
    for title, entries in listing.items():
        extra = ["server sees"] if title == Kind.algorithms else []
        rows = [
            [entry["name"], *([entry["privacy"]] if extra else []), _options(entry["options"]), entry["summary"]]
            for entry in entries
        ]
        print_table(title, ["name", *extra, "options", "what it is"], rows)
    if settings:
        rows = [[one.key, one.type, str(_json(one.default)), one.meaning] for one in settings]
        print_table("settings", ["key", "type", "default", "what it is"], rows)


def _entry(registry: Any, name: str) -> dict[str, Any]:
    part = registry.get(name)
    options = registry.options(name)
    entry = {
        "name": name,
        "summary": (part.__doc__ or "").strip().splitlines()[0],
        "options": {
            option.name: None if option.default is dataclasses.MISSING else _json(option.default) for option in options
        },
        "required": [option.name for option in options if option.default is dataclasses.MISSING],
        "types": {option.name: option.type for option in options},
        "presets": sorted(getattr(part, "presets", {})),
    }
    if registry.kind == "algorithm":
        entry["privacy"] = "-" if entry["required"] else part().privacy
    return entry


def _options(options: dict[str, Any]) -> str:
    return ", ".join(f"{key}={'?' if value is None else value}" for key, value in options.items())


def _json(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)

"""`propfair list`: what there is to choose from."""

import dataclasses
import enum
from typing import Annotated, Any

import typer

from propfair.cli.app import app
from propfair.cli.options import Format, OutputFormat
from propfair.errors import ConfigError


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
    kind: Annotated[
        Kind | None, typer.Argument(help=f"Only these: {', '.join(Kind)}.", metavar="[KIND]", show_default=False)
    ] = None,
    long: Annotated[
        bool, typer.Option("--long", help="Of algorithms: what each optimises, needs and costs, and its reference.")
    ] = False,
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

    if long and kind not in (None, Kind.algorithms):
        raise ConfigError(f"--long is about algorithms; got {kind}. Leave --long out, or list algorithms.")
    if long:
        kind = Kind.algorithms
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
            listing[name.value] = [_entry(registry, part, long) for part in registry.names()]
    settings = all_settings() if kind in (None, Kind.settings) else []
    if output == Format.json:
        told = [{**one._asdict(), "default": _json(one.default)} for one in settings]
        print_json({**listing, **({"settings": told} if settings else {})})
        return
    if long:
        _print_long(listing[Kind.algorithms.value])
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


def _print_long(entries: list[dict[str, Any]]) -> None:
    """Each algorithm by itself, with all that there is to know before choosing it."""
    from propfair.algorithms.guide import COLUMNS
    from propfair.cli.display import print_facts

    for entry in entries:
        facts = {title: entry[field] for field, title in COLUMNS.items() if field in entry}
        print_facts(entry["name"], {"what it is": entry["summary"], **facts, "options": _options(entry["options"])})


def _entry(registry: Any, name: str, long: bool) -> dict[str, Any]:
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
        from propfair.algorithms import guide

        entry["privacy"] = guide.example_of(name).privacy
        found = guide.entry_of(name) if long else None
        entry |= {} if found is None else {field: getattr(found, field) for field in guide.COLUMNS}
    return entry


def _options(options: dict[str, Any]) -> str:
    return ", ".join(f"{key}={'?' if value is None else value}" for key, value in options.items())


def _json(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)

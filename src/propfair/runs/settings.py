"""Every key of a config, with its type, its default and what it means: for `propfair list settings` and for errors."""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, get_type_hints

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from propfair.core.client import LocalTraining
from propfair.core.rounds import Rounds
from propfair.federation.split import Splitter
from propfair.registry import default_of, show_type
from propfair.runs.callbacks import Stopping
from propfair.runs.config import DataSection, Part, RunConfig
from propfair.runs.schedule import Schedule


class Setting(NamedTuple):
    """One key of a config."""

    key: str
    type: str
    default: Any
    meaning: str


def all_settings() -> list[Setting]:
    """The keys that every run has, in the order of the config; options of parts are with the parts."""
    named = [
        Setting(section, "name", "", f"The {section}; its options are {section}.KEY, see the list of {section}s.")
        for section in ("algorithm", "engine", "model")
    ]
    data = [
        Setting("data", "name", "digits", "The data set; its options are data.KEY, see the list of data sets."),
        *_of_model(DataSection, "data."),
        Setting("data.partition", "name", "", "Who gets what; its options are data.partition.KEY."),
    ]
    found = [*_of_model(RunConfig, ""), *named, *data]
    sections = {
        "data.split": Splitter, "local": LocalTraining, "server": Rounds, "schedule": Schedule,
        "early_stopping": Stopping,
    }  # fmt: skip
    return found + [setting for name, kind in sections.items() for setting in _of_dataclass(kind, f"{name}.")]


def _of_model(model: type[BaseModel], prefix: str) -> Iterator[Setting]:
    hints = get_type_hints(model)
    for name, field in model.model_fields.items():
        section = isinstance(field.default, (Part, LocalTraining, Rounds, Schedule)) or name in (
            "name",
            "split",
            "early_stopping",
        )
        if not section:
            default = None if field.default is PydanticUndefined else field.default
            yield Setting(f"{prefix}{name}", show_type(hints[name]), default, field.description or "")


def _of_dataclass(kind: type, prefix: str) -> Iterator[Setting]:
    hints, meanings = get_type_hints(kind), _arguments(kind.__doc__ or "")
    for field in dataclasses.fields(kind):
        yield Setting(
            f"{prefix}{field.name}", show_type(hints[field.name]), default_of(field), meanings.get(field.name, "")
        )


def _arguments(doc: str) -> dict[str, str]:
    """What the Args section of a doc-string says of each name."""
    section = doc.partition("Args:")[2].split("\n\n")[0]
    entries = re.findall(r"^        (\w[\w, ]*): ((?:.|\n {12,})+)", section, re.MULTILINE)
    return {name.strip(): " ".join(text.split()) for names, text in entries for name in names.split(",")}

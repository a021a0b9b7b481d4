"""Who takes part in a comparison, a sweep or a fine-tuning: an algorithm with its settings, under a label."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from propfair.runs.config import parse_overrides


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """One line of a comparison: an algorithm with its settings.

    Written `NAME` or `NAME:KEY=VALUE,...`; a key without a dot is a hyper-parameter of the algorithm, a key with one is
    any other setting: `propfair:M=5,local.lr=0.5`. The name may be the path of a class: `mine:Rule:strength=2`.

    Attributes:
        label: the name, with the settings where the name alone would not tell contestants apart.
        settings: dotted keys of the config, the algorithm among them, and their values.
        written: the settings as they were written, for people.
    """

    label: str
    settings: Mapping[str, Any]
    written: str = ""

    @classmethod
    def parse_all(cls, texts: Sequence[str]) -> "list[Contestant]":
        """Read the written forms."""
        names = [_name(text) for text in texts]
        parsed = []
        for text, name in zip(texts, names, strict=True):
            pairs = [pair for pair in text[len(name) + 1 :].split(",") if pair]
            keyed = (pair if "." in pair.partition("=")[0] else f"algorithm.{pair}" for pair in pairs)
            label = name if names.count(name) == 1 else text
            settings = {"algorithm": name, **parse_overrides(keyed)}
            parsed.append(Contestant(label=label, settings=settings, written=", ".join(pairs)))
        return parsed


def _name(text: str) -> str:
    """The algorithm in front of its settings.

    >>> _name("fedavg"), _name("propfair:M=5"), _name("mine:Rule"), _name("mine:Rule:strength=2,local.lr=1")
    ('fedavg', 'propfair', 'mine:Rule', 'mine:Rule')
    """
    name, _, rest = text.partition(":")
    second = rest.partition(":")[0]
    return f"{name}:{second}" if second and "=" not in second else name

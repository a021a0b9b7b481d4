"""Words that people type into the fields of a form: real lists of 19 countries that come with the package faker."""

import hashlib
import importlib
import re
import unicodedata
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from propfair.data.base import SOURCES, ArrayExamples, Protocol, Source
from propfair.errors import ConfigError, MissingExtraError, PropFairWarning

KINDS = ("given name", "family name", "place")
CLIENTS = {
    "cs_CZ": "Czech Republic",
    "da_DK": "Denmark",
    "de_AT": "Austria",
    "de_CH": "Switzerland (German)",
    "de_DE": "Germany",
    "en_IN": "India (English)",
    "es_CO": "Colombia",
    "fi_FI": "Finland",
    "fr_DZ": "Algeria (French)",
    "hr_HR": "Croatia",
    "id_ID": "Indonesia",
    "it_IT": "Italy",
    "nl_BE": "Belgium (Dutch)",
    "nl_NL": "Netherlands",
    "pt_PT": "Portugal",
    "ro_RO": "Romania",
    "sk_SK": "Slovakia",
    "sl_SI": "Slovenia",
    "zu_ZA": "South Africa (isiZulu)",
}
FAKER = "40.54.0"  # the version whose lists our numbers were made with
ALPHABET = " abcdefghijklmnopqrstuvwxyz"

_WHOLE_LETTERS = str.maketrans({"ß": "ss", "æ": "ae", "œ": "oe", "ø": "o", "đ": "d", "ð": "d", "ł": "l", "þ": "th"})


@SOURCES.register("form-fields")
@dataclass(frozen=True, kw_only=True)
class FormFields(Source):
    """Is a word a given name, a family name or a place? One client per country, 19 countries in Latin script.

    The words are those of the installed package faker. Given names are every `first_names*` list of a country, family
    names its `last_names*` without those, places its cities and municipalities without both. Words are in lower case
    without accents; a word is the counts of its 1-, 2- and 3-grams of letters and word boundaries, hashed.

    Args:
        max_words: at most, of a country; a longer list is cut to those with the smallest hash.
        num_features: how many counts the n-grams are hashed to.
    """

    max_words: int = 3000
    num_features: int = 512

    home = "bundled with faker"

    def __post_init__(self) -> None:
        for name in ("max_words", "num_features"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be >= 1; got {name}={getattr(self, name)}")

    @property
    def protocol(self) -> Protocol:
        return Protocol(("natural", {}), None, {"validation": 0.15, "test": 0.25}, model="logistic")

    def load(self, folder: Path | None = None) -> ArrayExamples:
        """Read the words from the installed faker."""
        try:
            version = metadata.version("faker")
        except metadata.PackageNotFoundError:
            raise MissingExtraError("data set 'form-fields'", "data") from None
        if version != FAKER:
            warnings.warn(
                f"the words of data set 'form-fields' come from faker {version}; published numbers were made with "
                f"faker {FAKER} and may differ",
                PropFairWarning,
                stacklevel=2,
            )
        words: list[str] = []
        kinds: list[int] = []
        sizes = []
        for locale in CLIENTS:
            kept = sorted(words_of(locale).items(), key=lambda item: _hash_of(item[0]))[: self.max_words]
            words += [word for word, _ in kept]
            kinds += [kind for _, kind in kept]
            sizes.append(len(kept))
        return ArrayExamples(
            count_grams(words, self.num_features),
            torch.tensor(kinds),
            num_classes=len(KINDS),
            user=torch.repeat_interleave(torch.arange(len(sizes), dtype=torch.int32), torch.tensor(sizes)),
            user_names=tuple(CLIENTS.values()),
        )


def words_of(locale: str) -> dict[str, int]:
    """The words of a country with their kind, a place in `KINDS`; a word of several kinds has the first."""
    people = importlib.import_module(f"faker.providers.person.{locale}").Provider
    places = importlib.import_module(f"faker.providers.address.{locale}").Provider
    given = [getattr(people, name) for name in dir(people) if name.startswith("first_names")]
    family = [getattr(people, name) for name in dir(people) if name.startswith("last_names")]
    towns = [getattr(places, name) for name in ("cities", "municipalities") if hasattr(places, name)]
    kinds: dict[str, int] = {}
    for kind, lists in enumerate((given, family, towns)):
        entries = [entry if isinstance(entry, str) else entry[-1] for entries in lists for entry in entries]
        for word in folded(entries):
            kinds.setdefault(word, kind)
    return kinds


def folded(entries: Iterable[str]) -> list[str]:
    """Lower case, no accents, letters and single blanks only; what is left empty is left out.

    >>> folded(["Žďár nad Sázavou", "Groß-Gerau", "42"])
    ['zdar nad sazavou', 'gross gerau']
    """
    text = unicodedata.normalize("NFKD", "\n".join(entries).lower().translate(_WHOLE_LETTERS))
    plain = re.sub(r"[^a-z\n]+", " ", text.encode("ascii", "ignore").decode())
    return [word for line in plain.split("\n") if (word := line.strip())]


def count_grams(words: list[str], num_features: int) -> Tensor:
    """How often each word has each n-gram, n = 1, 2, 3; grams are hashed to columns, [words, num_features] float32.

    A word begins and ends with a blank, so that grams know where it does. The hash is the same on every machine.
    """
    table = np.zeros(128, dtype=np.int64)
    table[[ord(letter) for letter in ALPHABET]] = np.arange(len(ALPHABET))
    lengths = np.array([len(word) + 2 for word in words])
    letters = table[np.frombuffer("".join(f" {word} " for word in words).encode("ascii"), dtype=np.uint8)]
    owner = np.repeat(np.arange(len(words)), lengths)
    counts = torch.zeros(len(words), num_features)
    code = np.zeros_like(letters)
    for size in (1, 2, 3):
        code = code[: len(letters) - size + 1] * len(ALPHABET) + letters[size - 1 :] + 1  # never the same for two grams
        inside = owner[size - 1 :] == owner[: len(code)]
        if size == 1:
            inside &= letters > 0  # a blank alone says nothing
        column = _mix(code[inside].astype(np.uint64)) % np.uint64(num_features)
        places = owner[: len(code)][inside] * num_features + column.astype(np.int64)
        counts.view(-1).scatter_add_(0, torch.from_numpy(places), torch.ones(len(places)))
    return counts


def _hash_of(word: str) -> bytes:
    return hashlib.blake2b(word.encode(), digest_size=8).digest()


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea, Flood, 2014)."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))

"""The exceptions that users meet. All of them are `ValueError`s or `RuntimeError`s with the way out in the text."""

import difflib
from collections.abc import Iterable


class PropFairError(Exception):
    """Base of all errors that propfair raises on purpose."""


class ConfigError(PropFairError, ValueError):
    """A setting, a name or a hyper-parameter is wrong. Raised before any work starts."""


class DataError(PropFairError, ValueError):
    """A data set is missing, damaged, hostile or does not fit the task."""


class TrainingError(PropFairError, RuntimeError):
    """Training can't go on; what was reached so far is kept."""


class WriteError(PropFairError, OSError):
    """A file can't be written: a full or read-only disk, a folder that is gone, a device. What was there is kept."""

    def __init__(self, path: object, reason: str, number: int | None = None) -> None:
        super().__init__(number, reason, str(path))

    def __str__(self) -> str:
        return f"can't write {self.filename}: {self.strerror}"


class MissingExtraError(PropFairError, ImportError):
    """An optional dependency is needed and not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an extra that is not installed: pip install 'propfair[{extra}]'")


class PropFairWarning(UserWarning):
    """Something is not as it should be, and the text says what was done about it."""


def printable(text: str) -> str:
    r"""A text without the characters that steer a terminal: whoever made a run folder may have put them in.

    >>> printable("plain"), printable("\x1b[31mred")
    ('plain', '�[31mred')
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in "\n\xa0" else "\N{REPLACEMENT CHARACTER}" for one in text)


def shown(value: object) -> str:
    """A value as an error shows it, cut where it is too long for a line.

    >>> shown("x" * 1000)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx ... (1002 characters)"
    """
    try:
        text = repr(value)
    except ValueError:  # a number of more than 4,300 digits
        return "a number of thousands of digits"
    except RecursionError:
        return "something nested too deeply"
    return text if len(text) <= 200 else f"{text[:80]} ... ({len(text)} characters)"


def unknown(kind: str, found: str, known: Iterable[str]) -> ConfigError:
    """The error for a name nobody knows: the nearest names first, then all of them."""
    names = sorted(known)
    folded = {name.lower(): name for name in names}
    near = [folded[name] for name in difflib.get_close_matches(found.lower(), folded, n=3, cutoff=0.5)]
    hint = f" Did you mean {' or '.join(repr(name) for name in near)}?" if near else ""
    return ConfigError(f"unknown {kind} {shown(found)}.{hint} Known: {', '.join(names) or 'none'}.")

"""Names for interchangeable parts: algorithms, data sources, models, partitioners, engines.

A part is a frozen dataclass; its fields are its options, its CLI flags and its line in `propfair list`.
A registry imports every module of its home package when it is first asked, so that adding a part is adding a file,
and then looks for parts of other packages under its entry-point group.
"""

import collections.abc
import dataclasses
import functools
import importlib
import math
import pkgutil
import sys
import types
import typing
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from propfair.errors import ConfigError, shown, unknown

LARGEST = 3e38  # that single precision holds; what is larger can only be inf
T = TypeVar("T")
C = TypeVar("C", bound=type)


@dataclasses.dataclass(frozen=True)
class Option:
    """One field of a part, as `propfair list` and the config show it."""

    name: str
    type: str
    default: Any  # dataclasses.MISSING when the user must choose


class Registry(Generic[T]):
    """The known parts of one kind.

    Args:
        kind: what the parts are, for error messages ("algorithm").
        package: every module below it is imported before the first look-up.
        group: the entry-point group under which other packages offer parts.
    """

    def __init__(self, kind: str, package: str, group: str) -> None:
        self.kind = kind
        self._package = package
        self._group = group
        self._parts: dict[str, type[T]] = {}
        self._aliases: dict[str, str] = {}  # former name -> name
        self._loaded = False

    def register(self, name: str, *, formerly: str | None = None) -> Callable[[C], C]:
        """Class decorator: makes the class known under `name`, which becomes its `name` attribute.

        `formerly` is a name that it had once: still understood, so that old configs and run folders stay readable, but
        never listed or written.
        """

        def add(part: C) -> C:
            known = self._parts.get(name)
            if known is not None and (known.__module__, known.__qualname__) != (
                part.__module__,
                part.__qualname__,
            ):
                raise ConfigError(f"two {self.kind}s are called {name!r}: {known.__module__} and {part.__module__}")
            part.name = name  # type: ignore[attr-defined]
            self._parts[name] = typing.cast("type[T]", part)
            if formerly is not None:
                self._aliases[formerly] = name
            return part

        return add

    def names(self) -> list[str]:
        """All known names, sorted."""
        self._load()
        return sorted(self._parts)

    def get(self, name: str) -> type[T]:
        """The class called `name`, now or formerly; an unknown name is an error that lists the nearest."""
        self._load()
        name = name if name in self._parts else self._aliases.get(name, name)
        if name not in self._parts:
            raise unknown(self.kind, name, self._parts)
        return self._parts[name]

    def options(self, name: str) -> list[Option]:
        """The fields of a part with their types and defaults."""
        part = self.get(name)
        hints = typing.get_type_hints(part)
        return [
            Option(f.name, show_type(hints[f.name]), default_of(f))
            for f in dataclasses.fields(typing.cast("Any", part))
            if f.init
        ]

    def make(self, name: str, fields: Mapping[str, Any] | None = None) -> T:
        """Build the part `name` from option values; see `make_part`."""
        return make_part(self.get(name), fields or {}, f"{self.kind} {name!r}")

    def _load(self) -> None:
        if self._loaded:
            return
        home = importlib.import_module(self._package)
        if hasattr(home, "__path__"):
            for module in pkgutil.iter_modules(home.__path__):
                importlib.import_module(f"{self._package}.{module.name}")
        self._loaded = True
        for entry in _entry_points(tuple(sys.path)).select(group=self._group):
            self.register(entry.name)(entry.load())


@functools.cache
def _entry_points(path: tuple[str, ...]) -> Any:  # noqa: ARG001 - decides what is found
    """What all packages on the import path offer, read once: it takes as long as loading all parts.

    Its type has another name since Python 3.12, and the same `select`.
    """
    return metadata.entry_points()


def import_path(path: str, kind: str) -> Any:
    """What `package.module:Name` names. Importing runs the module, so ask only for what the user has said.

    Modules are looked for in the working directory, too, after all other places.
    """
    home, _, name = path.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        return getattr(importlib.import_module(home), name)
    except Exception as error:  # importing runs the user's own code
        raise ConfigError(
            f"{kind} {path!r} can't be imported ({type(error).__name__}: {error}). "
            "Write package.module:Name, and run where Python finds the package."
        ) from error


def import_class(path: str, kind: str, base: type[T], called: str) -> type[T]:
    """A class of the user by its path; nothing that is not derived from `base`, `called` so, is ever called."""
    found = import_path(path, kind)
    if not (isinstance(found, type) and issubclass(found, base)):
        what = f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"
        raise ConfigError(f"{kind} {path!r} must be a class derived from {called}; it is {what} and was not called.")
    return found


def make_part(part: type[T], fields: Mapping[str, Any], what: str) -> T:
    """Build a part from option values, which may be text (from a command line or a TOML file).

    The key `preset` stands for a bundle of options that the part names in `presets`; single options win over it.
    """
    fields = dict(fields)
    preset = fields.pop("preset", None)
    if preset is not None:
        presets: Mapping[str, Mapping[str, Any]] = getattr(part, "presets", {})
        if not isinstance(preset, str) or preset not in presets:
            raise unknown(f"preset of {what}:", str(preset), presets)
        fields = {**presets[preset], **fields}
    return make_dataclass(part, fields, what)


def make_dataclass(kind: type[T], fields: Mapping[str, Any], what: str) -> T:
    """A dataclass from values that may be text; unknown, missing and wrong fields are errors that name `what`."""
    hints = typing.get_type_hints(kind)
    known = {f.name: f for f in dataclasses.fields(typing.cast("Any", kind)) if f.init}
    values: dict[str, Any] = {}
    for key, value in fields.items():
        if key not in known:
            raise unknown(f"option of {what}:", key, known)
        try:
            values[key] = TypeAdapter(hints[key]).validate_python(value)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise ConfigError(
                f"{what}: {key} must be {show_type(hints[key])}; got {key}={shown(value)} ({reason})"
            ) from None
        if isinstance(values[key], int | float) and LARGEST < abs(values[key]) < math.inf:
            raise ConfigError(f"{what}: {key} must be at most {LARGEST:g}; got {key}={shown(value)}")
    missing = [key for key, f in known.items() if key not in values and default_of(f) is dataclasses.MISSING]
    if missing:
        raise ConfigError(f"{what} needs a value for: {', '.join(missing)}")
    return kind(**values)


def check_fields(part: Any, *, only_text: bool = False) -> None:
    """Refuse values of a dataclass that its annotations rule out: a name that is no choice, a text for a number.

    A dataclass itself takes anything, and code that tells names apart would silently take a wrong one for the last of
    them.

    Args:
        part: an object made in Python; what comes from a config was checked by `make_dataclass`.
        only_text: look at texts alone, for classes of users whose other annotations may be careless.
    """
    for name, hint in _hints(typing.cast("Any", type(part))).items():
        value = getattr(part, name)
        if only_text and not isinstance(value, str):
            continue
        if _fits(value, hint):
            if hint in (int, float) and not isinstance(value, int | float):
                object.__setattr__(part, name, hint(value))  # of numpy or torch, which no run folder can hold
            continue
        if typing.get_origin(hint) is typing.Literal and isinstance(value, str):
            raise unknown(name, value, typing.get_args(hint))
        raise ConfigError(f"{name} must be {show_type(hint)}; got {name}={shown(value)}")


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """The types of all fields; none where an annotation can't be resolved."""
    try:
        hints = typing.get_type_hints(kind)
    except (NameError, TypeError):
        return {}
    return {f.name: hints[f.name] for f in dataclasses.fields(typing.cast("Any", kind)) if f.init}


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value may be of a type, as far as plain values go; numbers of numpy and torch are numbers."""
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return value in typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in typing.get_args(hint))
    if origin is tuple:
        return not isinstance(value, str) and hasattr(value, "__iter__")
    if origin is collections.abc.Callable:
        return callable(value)
    plain: dict[Any, Any] = {int: typing.SupportsIndex, float: typing.SupportsFloat, str: str, type(None): type(None)}
    return isinstance(value, plain[hint]) if hint in plain else True


def fields_of(part: Any) -> dict[str, Any]:
    """The option values of a part, as they go into a config file; the inverse of `Registry.make`."""
    return {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if f.init}


def default_of(field: "dataclasses.Field[Any]") -> Any:
    """The default of a field; dataclasses.MISSING where there is none."""
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return dataclasses.MISSING


def show_type(hint: Any) -> str:
    """A type as it is shown to people."""
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(repr(value) for value in typing.get_args(hint))
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint).replace("typing.", "")

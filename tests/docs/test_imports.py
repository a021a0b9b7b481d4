"""Pages and examples import what users may import: the names that the doors of the packages offer, and no others."""

import ast
import doctest
import importlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

import propfair.algorithms
from tests.docs.test_blocks import PAGES, ROOT
from tests.golden.test_public_names import DOORS, SNAPSHOT

FOR_CONTRIBUTORS = ("CONTRIBUTING.md",)  # they work inside the package
EXAMPLES = {str(path.relative_to(ROOT)): path for path in sorted((ROOT / "examples").rglob("*.py"))}


def of_page(page: str) -> str:
    """All Python of a page; of doctests what is typed."""
    code = []
    for block in PAGES[page]:
        if block.code.startswith(">>>"):
            code += [example.source for example in doctest.DocTestParser().get_examples(block.code)]
        elif block.language == "python":
            code.append(block.code)
    return "\n".join(code)


def used(code: str) -> Iterator[tuple[str, str]]:
    """Pairs of a module of propfair and a name that is taken from it."""
    nodes = list(ast.walk(ast.parse(code)))
    whole = any(alias.name == "propfair" for node in nodes if isinstance(node, ast.Import) for alias in node.names)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.split(".")[0] == "propfair")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "propfair":
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif whole and isinstance(node, ast.Attribute) and ast.unparse(node.value) == "propfair":
            yield "propfair", node.attr


def assert_public(module: str, name: str) -> None:
    assert module in DOORS, f"{module} is not a door"
    assert not name or name in (*importlib.import_module(module).__all__, "__version__"), f"{module} has no {name}"


@pytest.mark.parametrize("page", [page for page in PAGES if page not in FOR_CONTRIBUTORS])
def test_pages(page: str) -> None:
    for module, name in used(of_page(page)):
        assert_public(module, name)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples(example: str) -> None:
    for module, name in used(EXAMPLES[example].read_text(encoding="utf-8")):
        assert_public(module, name)


def thing(name: str) -> Any:
    module, _, own = name.rpartition(".")
    return getattr(importlib.import_module(module), own)


def test_the_reference_shows_what_is_public_and_nothing_else() -> None:
    """By identity: a function with the name of its module is shown by its full path, and many things have two doors."""
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.md"))
    shown = {id(thing(name)): name for name in re.findall(r"^#* ?::: (\S+)$", pages, re.MULTILINE)}
    made = {id(getattr(propfair.algorithms, name)) for name in propfair.algorithms.__all__}  # scripts/docs_hooks.py
    public = {id(thing(name)): name for name in SNAPSHOT}
    assert [name for key, name in public.items() if key not in shown.keys() | made] == []
    assert [name for key, name in shown.items() if key not in public] == []

"""What the site makes itself: pages from the registries and notebooks, formulas as MathML, a menu of what exists."""

import html
import inspect
import json
import logging
import re
from pathlib import Path
from typing import Any

import gallery
import typer.main
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.cli import get_docs_for_click

import propfair.algorithms
from propfair.algorithms import ALGORITHMS
from propfair.cli.app import app, load_commands

# A formula, also one in $$ inside a line, which the extension takes for $ with two stray signs around it.
_FORMULA = re.compile(r'(\$?)<(span|div) class="arithmatex">(.*?)</\2>(\$?)', re.DOTALL)
_NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples" / "notebooks").glob("*.ipynb"))
_GENERATED = (
    "reference/algorithms.md", "reference/cli.md", gallery.PAGE, *(f"notebooks/{path.stem}.md" for path in _NOTEBOOKS),
)  # fmt: skip


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Leave out of the menu what is not written."""
    logging.getLogger("mkdocs.plugins.griffe").setLevel(logging.ERROR)
    config.nav = _existing(config.nav, Path(config.docs_dir))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that follow from the code and from the notebooks, which can be downloaded beside them."""
    pages = (algorithms_page(), commands_page(), gallery.gallery_page(), *map(notebook_page, _NOTEBOOKS))
    for name, content in zip(_GENERATED, pages, strict=True):
        files.append(File.generated(config, name, content=content))
    for name, content in gallery.gallery_files():
        files.append(File.generated(config, name, content=content))
    for path in _NOTEBOOKS:
        files.append(File.generated(config, f"notebooks/{path.name}", content=path.read_text(encoding="utf-8")))
    return files


def on_page_content(html_text: str, **_: Any) -> str:
    """Formulas as MathML, which browsers draw themselves."""
    return _FORMULA.sub(_mathml, html_text)


def algorithms_page() -> str:
    """One entry for each registered algorithm; a new file in the package is a new entry here."""
    parts = [
        "# Algorithms",
        "Each is a frozen dataclass; its fields are its options in configs and on the command line. "
        "`propfair list algorithms` prints them with their defaults.",
    ]
    shown = set()
    for name in ALGORITHMS.names():
        kind = ALGORITHMS.get(name).__name__
        shown.add(kind)
        parts.append(f"## `{name}`\n\n### ::: propfair.algorithms.{kind}\n    options:\n      members: false")
    parts.append("## The contract")
    parts += [f"### ::: propfair.algorithms.{name}" for name in propfair.algorithms.__all__ if name not in shown]
    return "\n\n".join(parts) + "\n"


def commands_page() -> str:
    """Every command with its options, from the command itself."""
    load_commands()
    command = typer.main.get_command(app)
    context = typer.Context(command, info_name="propfair")
    text = get_docs_for_click(obj=command, ctx=context, name="propfair", title="Command line")
    return re.sub(r"\[/?cyan\]", "`", text)


def notebook_page(path: Path) -> str:
    """The text and the code of a notebook. Its outputs are what the reader gets by running it."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells]
    shown = [
        source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```"
        for cell, source in zip(cells, sources, strict=True)
    ]
    download = f"[The notebook]({path.name}) itself; it runs from top to bottom in a minute or so."
    return "\n\n".join([shown[0], download, *shown[1:]]) + "\n"


def _existing(nav: Any, docs: Path) -> Any:
    if isinstance(nav, list):
        kept = [_existing(item, docs) for item in nav]
        return [item for item in kept if item]
    if isinstance(nav, dict):
        return {title: found for title, item in nav.items() if (found := _existing(item, docs))}
    return nav if nav in _GENERATED or (docs / nav).exists() else None


def _mathml(match: re.Match[str]) -> str:
    formula = inspect.cleandoc(html.unescape(match.group(3)))[2:-2]  # without \( \) or \[ \]
    inline = match.group(2) == "span" and not match.group(1)
    return convert(formula, display="inline" if inline else "block")

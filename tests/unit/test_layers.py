"""Imports go downward: a module imports only modules of its own layer's package or of layers below."""

import ast
from collections.abc import Iterator
from pathlib import Path

import propfair

ROOT = Path(propfair.__file__).parent

# From the ground up. A module belongs to the longest name that it starts with.
LAYERS = [
    ["errors"],
    ["files", "params", "ragged", "registry", "rewrite", "seeds", "solvers", "transforms"],
    ["algorithms", "fairness", "loss", "models", "partition", "split"],
    ["reports"],
    ["data"],
    ["federation"],
    ["data.own"],
    ["evaluation"],
    ["client"],
    ["engines"],
    ["server"],
    ["result", "flower"],
    ["experiment"],
    ["api", "report"],
    ["cli"],
    ["__main__"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name and not name.startswith("presets"):
            yield name, path


def layer(name: str) -> str:
    parts = name.split(".")
    known = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next(one for one in known if one in LEVEL)


def imports(path: Path) -> Iterator[str]:
    """Names below propfair that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.startswith("propfair."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "propfair":
            yield from (f"{node.module}.{one.name}" for one in node.names)


def test_every_module_has_a_layer() -> None:
    for name, _ in modules():
        assert layer(name)


def test_imports_go_downward() -> None:
    upward = [
        f"{name} imports {imported}"
        for name, path in modules()
        for imported in imports(path)
        for own, other in [(layer(name), layer(imported.removeprefix("propfair.")))]
        if own != other and LEVEL[own] <= LEVEL[other]
    ]
    assert upward == []

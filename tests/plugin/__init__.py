"""An algorithm from outside: the folder `site` is what `pip install` would leave of a package with one file."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from propfair.algorithms import ALGORITHMS

SITE = Path(__file__).parent / "site"


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """This process and those that it starts find the algorithm "tempered" by its entry point, until the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SITE))
        patch.setenv("PYTHONPATH", str(SITE), prepend=os.pathsep)
        patch.setattr(ALGORITHMS, "_loaded", False)
        try:
            assert "tempered" in ALGORITHMS.names()
            yield
        finally:
            ALGORITHMS._parts.pop("tempered", None)

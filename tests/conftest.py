"""For all tests: one thread (the machine has other work), the same hypothesis examples in every CI run, and files that
stay whole when two processes share them."""

import atexit
import os
import shutil
import tempfile

# Before torch is loaded: some virtual machines promise AMX and kill who uses it, and tests that pretend that the
# processor multiplies bf16 would. Products of float32 do not use it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import pytest
import torch
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="propfair-state-")  # what the user trusts is not for tests
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)
torch.set_num_threads(1)
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("here", deadline=None)
settings.load_profile("ci" if {"CI", "SAME_EXAMPLES"} & os.environ.keys() else "here")

START_A_CLUSTER = ("tests/engines/test_ray.py", "tests/flower/test_example.py")


@pytest.fixture(autouse=True)
def same_first_models() -> None:
    """Modules that a test makes have the same weights whichever tests ran before it."""
    torch.manual_seed(0)


class WholeFiles(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """The tests of a file run in a row, on one process, since they share what is expensive to make.

    Files that start a Ray cluster also run in a row: two clusters would take each other's cores, and find each other.
    """

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "cluster" if file in START_A_CLUSTER else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> WholeFiles:
    return WholeFiles(config, log)

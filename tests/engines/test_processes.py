"""Worker processes: the bits of one process, whatever happens to the workers; nothing left behind."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from propfair.algorithms.base import ALGORITHMS
from propfair.algorithms.propfair import PropFair
from propfair.core.params import FlatModel
from propfair.core.rounds import Rounds
from propfair.core.tasks import cross_entropy
from propfair.engines.inprocess import InProcess
from propfair.engines.processes import engine as processes
from propfair.engines.processes import launcher, shared
from propfair.engines.processes.engine import Processes, ProcessesSession
from propfair.engines.server import Server
from propfair.errors import ConfigError, TrainingError
from tests.engines import scenes

TWO = Processes(workers=2)
ONE_THREAD = InProcess(threads=1)


def wait_for_both(session: ProcessesSession, model: FlatModel) -> list[int]:
    """The process ids of both workers; the slower one may still be starting when the faster one is done."""
    while len(session.pids) < 2:
        session.evaluate(model.params, model.buffers, "test", range(3))
    return session.pids


@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_every_algorithm_gives_the_bits_of_one_process(name: str) -> None:
    expected = scenes.run(ONE_THREAD, scenes.workload(name), scenes.with_buffers_and_dropout())
    found = scenes.run(TWO, scenes.workload(name), scenes.with_buffers_and_dropout())
    scenes.assert_same(found, expected)
    assert not found.events


def test_bf16_gives_the_bits_of_one_process() -> None:
    work = scenes.workload("propfair", precision="bf16")
    expected = scenes.run(ONE_THREAD, work, scenes.with_buffers_and_dropout())
    scenes.assert_same(scenes.run(TWO, work, scenes.with_buffers_and_dropout()), expected)


def test_few_slots_partial_participation_and_unequal_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "SLOT_BYTES", 0)  # three slots for a cohort of nine
    steps = tuple(1 + 3 * client % 7 for client in range(len(scenes.SIZES)))
    work = scenes.workload(steps=steps, momentum=0.9, weight_decay=0.01)
    rounds = Rounds(participation=9)
    expected = scenes.run(ONE_THREAD, work, scenes.mlp(), rounds, num_rounds=3)
    scenes.assert_same(scenes.run(TWO, work, scenes.mlp(), rounds, num_rounds=3), expected)


def test_more_workers_than_clients() -> None:
    work = scenes.workload(data=scenes.federation((12, 9)))
    expected = scenes.run(ONE_THREAD, work, scenes.mlp())
    scenes.assert_same(scenes.run(Processes(workers=4), work, scenes.mlp()), expected)


def test_a_client_that_diverges_is_left_out() -> None:
    data = scenes.federation()
    data.examples.tensors()["x"][data.train[4]] = 1e30
    expected = scenes.run(ONE_THREAD, scenes.workload(data=data), scenes.mlp())
    assert expected.outcomes[0].dropped == (4,)
    scenes.assert_same(scenes.run(TWO, scenes.workload(data=data), scenes.mlp()), expected)


def fatal_once(output: Tensor, target: Tensor) -> Tensor:
    """Kills its process, if that is a worker and the one that takes the marker file away."""
    marker = Path(os.environ["PROPFAIR_TEST_MARKER"])
    if os.getpid() != int(marker.with_suffix(".pid").read_text()):
        with contextlib.suppress(FileNotFoundError):  # both workers may see it, and one of them takes it
            marker.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
    return cross_entropy(output, target)


def fatal_always(output: Tensor, target: Tensor) -> Tensor:
    os.kill(os.getpid(), signal.SIGKILL)
    return cross_entropy(output, target)


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PROPFAIR_TEST_MARKER", str(tmp_path / "marker"))
    monkeypatch.setattr(launcher, "_current", None)  # a launcher that has this variable
    (tmp_path / "marker.pid").write_text(str(os.getpid()))
    return tmp_path / "marker"


def test_a_worker_that_dies_in_training_is_replaced_and_the_bits_stay(marker: Path) -> None:
    work = replace(scenes.workload(PropFair(placement="step")), loss=fatal_once)
    expected = scenes.run(ONE_THREAD, work, scenes.mlp())
    marker.touch()
    found = scenes.run(TWO, work, scenes.mlp())
    assert not marker.exists()
    scenes.assert_same(found, expected)
    (event,) = found.events
    assert (event.round, event.kind) == (1, "rerun")
    assert event.clients
    assert "code -9" in event.detail


def test_a_worker_killed_from_outside_between_rounds() -> None:
    expected = scenes.run(ONE_THREAD, scenes.workload(), scenes.mlp(), num_rounds=4)
    model = FlatModel(scenes.mlp())
    with TWO.start(model, scenes.workload()) as session:
        pids = wait_for_both(session, model)
        os.kill(pids[0], signal.SIGKILL)
        found = scenes.play(session, model, Rounds(), num_rounds=4)
        assert pids[0] not in session.pids
        assert pids[1] in session.pids
    scenes.assert_same(found, expected)
    assert [event.kind for event in found.events] == ["rerun"]


def test_the_launcher_may_be_killed_too() -> None:
    expected = scenes.run(ONE_THREAD, scenes.workload(), scenes.mlp())
    model = FlatModel(scenes.mlp())
    with TWO.start(model, scenes.workload()) as session:
        os.kill(_parent(wait_for_both(session, model)[0]), signal.SIGKILL)
        time.sleep(1.5)  # workers notice within a second
        scenes.assert_same(scenes.play(session, model, Rounds()), expected)


def test_workers_that_always_die_end_the_training() -> None:
    work = replace(scenes.workload(), loss=fatal_always)
    with pytest.raises(TrainingError, match=r"6 worker processes ended .* code -9.*fewer workers"):
        scenes.run(TWO, work, scenes.mlp())


class Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        raise ZeroDivisionError("no forward")


def test_an_exception_in_a_worker_is_raised_here_and_the_session_lives_on() -> None:
    model = FlatModel(Fails())
    with TWO.start(model, scenes.workload()) as session:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError, match="no forward") as caught:
                scenes.play(session, model, Rounds())
            assert "in forward" in caught.value.__notes__[0]


def test_what_cannot_be_pickled_is_an_error_that_says_so() -> None:
    work = replace(scenes.workload(), loss=lambda output, target: cross_entropy(output, target))
    with pytest.raises(ConfigError, match=r"can't be pickled: .*lambda.*engine=inprocess"):
        TWO.start(FlatModel(scenes.mlp()), work)


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="workers must be >= 0; got workers=-1"):
        Processes(workers=-1)
    with pytest.raises(ConfigError, match="threads must be at least 1; got threads=0"):
        Processes(threads=0)
    with pytest.raises(ConfigError, match=r"runs on the CPU; got device='meta'"):
        TWO.start(FlatModel(scenes.mlp()), replace(scenes.workload(), device="meta"))


def test_abandoned_rounds_leave_no_trace_in_the_next_one() -> None:
    expected = scenes.run(ONE_THREAD, scenes.workload(), scenes.mlp())
    model = FlatModel(scenes.mlp())
    with TWO.start(model, scenes.workload()) as session:
        plan = Server(session, Rounds(), model.params + 1, model.buffers).plan(None)
        blocks = session.train(plan.job)
        next(blocks)
        scenes.assert_same(scenes.play(session, FlatModel(scenes.mlp()), Rounds()), expected)


def test_the_model_has_no_idle_copy_while_workers_train() -> None:
    model, before = FlatModel(scenes.mlp()), FlatModel(scenes.mlp()).params
    with TWO.start(model, scenes.workload()) as session:
        assert not _is_shared(model.params)
        end = scenes.play(session, model, Rounds())
        assert all(_is_shared(tensor) for tensor in (model.params, *model.trainable))
    assert not any(_is_shared(tensor) for tensor in (model.params, *model.trainable))
    model.load(end.params, end.buffers)
    x = scenes.workload().federation.examples.inputs(torch.arange(2))
    again = scenes.mlp()
    again.load_state_dict(model.state_dict(end.params, end.buffers))
    assert torch.equal(model.module(x), again(x))
    assert not torch.equal(end.params, before)


def test_workers_import_no_tables() -> None:
    code = "import sys, propfair.engines.processes.worker; print('pyarrow' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "False"


def _is_shared(tensor: torch.Tensor) -> bool:
    """Whether the tensor lies in memory that other processes see."""
    address = tensor.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= address < last:
            return line.split()[1].endswith("s")
    raise AssertionError("not mapped")


def test_nothing_is_left_after_closing() -> None:
    scenes.run(TWO, scenes.workload(), scenes.mlp())  # the launcher is there to stay
    before = _open_files(), _shared_memory(), _descendants(os.getpid())
    model = FlatModel(scenes.mlp())
    session = TWO.start(model, scenes.workload("fedavg"))
    scenes.play(session, model, Rounds())
    pids = wait_for_both(session, model)
    assert set(pids) <= _descendants(os.getpid())
    session.close()
    session.close()
    del session  # mappings go with their last tensor
    assert (_open_files(), _shared_memory(), _descendants(os.getpid())) == before


SCRIPT = """
import signal
import socket
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
import sys, time
{imports}
from propfair.engines.processes.engine import Processes
from propfair.core.params import FlatModel
from propfair.core.rounds import Rounds
from tests.engines import scenes
from tests.engines.test_processes import wait_for_both
{body}
"""
START = """
    model = FlatModel({model})
    with Processes(workers=2).start(model, scenes.workload()) as session:
        scenes.play(session, model, Rounds())
        print(*wait_for_both(session, model), flush=True)
        time.sleep({pause})
"""


def _script(tmp_path: Path, body: str, imports: str = "") -> list[str]:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(imports=imports, body=body))
    return [sys.executable, str(path)]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_process_that_started_them(number: signal.Signals, tmp_path: Path) -> None:
    command = _script(tmp_path, "if True:" + START.format(model="scenes.mlp()", pause=60))
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment(), start_new_session=True, text=True
    ) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 2
        family = _descendants(process.pid)
        assert set(pids) < family
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as Ctrl-C in a terminal does
        else:
            process.send_signal(number)
        _, errors = process.communicate(timeout=30)
        assert errors.count("Traceback") == (number == signal.SIGINT)  # the parent's own, and no other
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in family) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in family)


def test_a_script_without_a_guard_works_if_its_model_is_imported(tmp_path: Path) -> None:
    command = _script(tmp_path, "if True:" + START.format(model="scenes.mlp()", pause=0))
    done = subprocess.run(command, capture_output=True, env=_environment(), timeout=120, text=True, check=True)
    assert len(done.stdout.split()) == 2


MODEL = """
from torch import nn
class Own(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 3))
"""


@pytest.mark.slow
def test_a_model_defined_in_a_guarded_script_works(tmp_path: Path) -> None:
    body = "if __name__ == '__main__':" + START.format(model="Own()", pause=0)
    command = _script(tmp_path, body, MODEL)
    done = subprocess.run(command, capture_output=True, env=_environment(), timeout=120, text=True, check=True)
    assert len(done.stdout.split()) == 2


@pytest.mark.slow
def test_a_model_defined_in_a_script_without_a_guard_is_an_error_that_says_so(tmp_path: Path) -> None:
    command = _script(tmp_path, "if True:" + START.format(model="Own()", pause=0), MODEL)
    done = subprocess.run(command, capture_output=True, env=_environment(), timeout=120, text=True, check=False)
    assert done.returncode == 1
    assert "Put that part under `if __name__ == '__main__':`" in done.stderr


def test_packing_moves_tensors_and_keeps_the_rest() -> None:
    data, weight = torch.arange(12).view(3, 4)[:, 1:], nn.Parameter(torch.ones(2))
    thing = {"data": data, "again": data, "weight": weight, "flag": torch.tensor([True]), "none": torch.empty(0, 2)}
    memory, _ = shared.pack(thing)
    copy = shared.unpack(memory)
    memory.close()
    assert copy["data"] is copy["again"]
    assert copy["data"].tolist() == [[1, 2, 3], [5, 6, 7], [9, 10, 11]]
    assert copy["flag"].tolist() == [True]
    assert copy["none"].shape == (0, 2)
    data[0, 0] = -5
    assert copy["data"][0, 0] == -5
    copy["weight"].data[0] = 7
    assert weight[0] == 1


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _shared_memory() -> set[Path]:
    return {path for path in Path("/dev/shm").iterdir() if "propfair" in path.name or "torch" in path.name}


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _descendants(pid: int) -> set[int]:
    children = {int(child) for task in Path(f"/proc/{pid}/task").iterdir()
                for child in (task / "children").read_text().split()}  # fmt: skip
    return children.union(*(_descendants(child) for child in children))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("", "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.perturb=3", "glibc.malloc.perturb=3:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
    ],
)
def test_workers_get_large_pages_unless_told_otherwise(ours: str, theirs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", ours)
    assert launcher._environment()["GLIBC_TUNABLES"] == theirs


def test_a_launcher_whose_parent_is_gone_ends_before_it_is_ready() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    ours, theirs = socket.socketpair()
    with ours, theirs:  # open: nothing else tells it
        boot = [sys.executable, "-c", launcher._BOOT, str(theirs.fileno()), str(gone.pid), *sys.path]
        assert subprocess.Popen(boot, pass_fds=[theirs.fileno()]).wait(200) == 0

"""Several runs at once: each gives what it gives alone, up to rounding, and ends by itself."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from torch import nn

from propfair.algorithms.base import ALGORITHMS, Algorithm, Objective
from propfair.core.client import Workload
from propfair.core.messages import Block, Job
from propfair.core.rounds import Rounds
from propfair.engines.inprocess import InProcess
from propfair.engines.session import Engine
from propfair.engines.stacked.fold import Fold
from propfair.engines.together import NOTE, Runner
from propfair.engines.turns import Program, Turns
from propfair.engines.vectorized import Vectorized
from propfair.files import while_waiting
from tests.builders import seeded
from tests.contract.test_algorithms import CASES
from tests.engines import scenes

TOLERANCE = 1e-5
DATA = scenes.federation()


def logistic() -> nn.Module:
    return seeded(lambda: nn.Linear(6, 3), seed=1)


def no_bias() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False)), seed=1)


def together(
    works: list[Workload], build: Callable[[], nn.Module], rounds: Rounds | None = None, memory: float = 0.5
) -> list[scenes.Run]:
    def program(work: Workload, engine: Engine) -> scenes.Run:
        return scenes.run(engine, work, build(), rounds)

    found = Runner[scenes.Run](Vectorized(memory=memory)).run([partial(program, work) for work in works])
    return [one for one in found if isinstance(one, scenes.Run)]


def check(
    works: list[Workload], build: Callable[[], nn.Module], rounds: Rounds | None = None, memory: float = 0.5
) -> list[scenes.Run]:
    found = together(works, build, rounds, memory)
    for work, one in zip(works, found, strict=True):
        scenes.assert_same(one, scenes.run(InProcess(threads=1), work, build(), rounds), TOLERANCE)
    return found


@pytest.mark.parametrize("build", [logistic, scenes.mlp], ids=["logistic", "mlp"])
def test_every_algorithm_beside_all_others(build: Callable[[], nn.Module]) -> None:
    works = [scenes.workload(ALGORITHMS.make(*case), data=DATA, lr=lr) for case in CASES for lr in (0.02, 0.1)]
    found = check(works, build)
    folded = [work.algorithm.name for work, one in zip(works, found, strict=True) if NOTE in one.notes]
    assert {"fedavg", "propfair", "afl", "term", "fedmgda+", "q-fedavg", "gifair"} <= set(folded)
    assert not {"ditto", "scaffold"} & set(folded)  # they do more than descend a loss


@pytest.mark.parametrize(
    "local",
    [{"epochs": 3}, {"steps": 7}, {"steps": tuple(1 + 5 * client % 7 for client in range(len(scenes.SIZES)))},
     {"batch_size": 1000}, {"momentum": 0.5}],
    ids=str,
)  # fmt: skip
def test_local_training(local: dict[str, object]) -> None:
    works = [scenes.workload(name, data=DATA, lr=lr, **local) for name in ("fedavg", "afl") for lr in (0.02, 0.1)]
    check(works, no_bias, Rounds(participation=7))


def test_other_seeds_and_few_clients_a_round() -> None:
    works = [replace(scenes.workload("propfair", data=DATA, lr=lr), seed=seed) for seed in (0, 1) for lr in (0.1, 0.2)]
    check(works, scenes.mlp, Rounds(participation=4))


def test_little_memory_means_fewer_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    train = Fold.train

    def counted(self: Fold, works: Sequence[Workload], jobs: Sequence[Job]) -> list[Block]:
        sizes.append(len(works))
        return train(self, works, jobs)

    monkeypatch.setattr(Fold, "train", counted)
    works = [scenes.workload("fedavg", data=DATA, lr=0.01 * k) for k in range(1, 8)]
    check(works, logistic)
    assert set(sizes) == {7}
    sizes.clear()
    check(works, logistic, memory=3e-5)
    assert max(sizes) < 7
    sizes.clear()
    check([scenes.workload("fedavg", data=DATA, lr=0.01 * k, batch_size=10**8) for k in range(1, 8)], logistic)
    assert set(sizes) == {7}, "a batch is no larger than what a client has"


@pytest.mark.parametrize("build", [logistic, scenes.mlp, no_bias], ids=["logistic", "mlp", "no bias"])
def test_bits_do_not_depend_on_who_else_is_there(build: Callable[[], nn.Module]) -> None:
    """What ran beside what was a matter of time, and so was the last digit; at a large rate, the chosen trial."""
    names = ("fedavg", "propfair", "afl", "fedmgda+", "term", "q-fedavg")
    works = [scenes.workload(name, data=DATA, lr=lr) for lr in (0.1, 0.02, 0.3) for name in names]
    found = together(works, build)
    for some in ([3], [1, 12], [17, 5, 9, 2], list(reversed(range(1, 16)))):
        for place, one in zip(some, together([works[place] for place in some], build), strict=True):
            scenes.assert_same(one, found[place])


def test_what_can_not_be_folded_is_trained_alone_to_the_same_bits() -> None:
    works = [scenes.workload("fedavg", data=DATA, lr=lr) for lr in (0.02, 0.1)]
    build = scenes.with_buffers_and_dropout
    for work, one in zip(works, together(works, build), strict=True):
        scenes.assert_same(one, scenes.run(Vectorized(), work, build()))
        assert NOTE not in one.notes


class WithOption(nn.Module):
    def __init__(self, relu: bool) -> None:
        super().__init__()
        self.first, self.last, self.relu = nn.Linear(6, 8), nn.Linear(8, 3), relu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        scores: torch.Tensor = self.last(torch.relu(hidden) if self.relu else hidden)
        return scores


def test_models_of_one_class_and_shape_may_differ() -> None:
    """A sweep over an option of one's own model trained all runs as the first."""
    work = scenes.workload("fedavg", data=DATA, lr=0.1)
    builds = [partial(seeded, partial(WithOption, relu), seed=1) for relu in (True, False)]
    found = Runner[scenes.Run](Vectorized()).run(
        [lambda engine, build=build: scenes.run(engine, work, build()) for build in builds]  # type: ignore[misc]
    )
    for build, one in zip(builds, found, strict=True):
        assert isinstance(one, scenes.Run)
        assert NOTE in one.notes
        scenes.assert_same(one, scenes.run(InProcess(threads=1), work, build()), TOLERANCE)


@dataclass(frozen=True, kw_only=True)
class PerhapsMixing(Algorithm):
    """Its objective is one of a single client only: of several at once it would mix them."""

    name = "perhaps-mixing"
    mixes: bool = True

    @property
    def objective(self) -> Objective | None:
        return (lambda batch_loss, _: batch_loss * batch_loss.mean()) if self.mixes else None


def test_an_objective_that_only_some_options_have_is_looked_at_by_itself() -> None:
    works = [scenes.workload(PerhapsMixing(mixes=mixes), data=DATA, lr=0.1) for mixes in (False, True)]
    plain, mixing = check(works, logistic)
    assert NOTE in plain.notes
    assert NOTE not in mixing.notes


def test_a_run_that_diverges_takes_no_other_along() -> None:
    works = [scenes.workload("fedavg", data=DATA, lr=lr) for lr in (0.1, 1e30, 0.02)]

    def program(work: Workload, engine: Engine) -> scenes.Run:
        return scenes.run(engine, work, logistic(), num_rounds=3)

    first, broken, last = Runner[scenes.Run](Vectorized()).run([partial(program, work) for work in works])
    assert "diverged" in str(broken) or "finite" in str(broken)
    for work, one in ((works[0], first), (works[2], last)):
        assert isinstance(one, scenes.Run)
        scenes.assert_same(one, scenes.run(InProcess(threads=1), work, logistic(), num_rounds=3), TOLERANCE)


def test_after_an_interrupt_nothing_is_begun_and_what_was_begun_ends() -> None:
    ended: list[int] = []

    def program(number: int, own: Program) -> None:
        if number == 1:
            raise KeyboardInterrupt
        own.ask(number)
        ended.append(number)

    with pytest.raises(KeyboardInterrupt):
        Turns(lambda requests: requests, urgent=lambda _: False).run([partial(program, k) for k in range(3)])
    assert ended == [0]


def test_an_interrupt_of_all_reaches_every_program() -> None:
    ended: list[int] = []

    def program(number: int, own: Program) -> None:
        try:
            own.ask(number)
        except KeyboardInterrupt:
            ended.append(number)

    def serve(_: object) -> list[int]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Turns(serve, urgent=lambda _: False).run([partial(program, k) for k in range(3)])
    assert sorted(ended) == [0, 1, 2]


def test_a_program_that_asks_again_after_an_interrupt_is_interrupted_again() -> None:
    """It used to wait for ever, and with it whoever waited for its end."""
    asked = []

    def program(own: Program) -> None:
        try:
            own.ask("first")
        finally:
            asked.append(True)
            own.ask("to tidy up")

    def serve(_: Sequence[str]) -> list[str]:
        raise KeyboardInterrupt

    def run() -> None:
        with pytest.raises(KeyboardInterrupt):
            Turns(serve, urgent=lambda _: False).run([program])

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    assert asked
    assert not thread.is_alive()


def test_programs_take_turns() -> None:
    said: list[str] = []
    running = 0

    def program(name: str, count: int, own: Program) -> str:
        nonlocal running
        for step in range(count):
            running += 1
            assert running == 1
            said.append(f"{name}{step}")
            running -= 1
            assert own.ask(step) == step * 10
        if name == "b":
            raise ValueError(name)
        return name

    served: list[list[int]] = []

    def serve(requests: object) -> list[int]:
        assert isinstance(requests, list)
        served.append(requests)
        return [10 * number for number in requests]

    functions = [partial(program, name, count) for name, count in (("a", 3), ("b", 1), ("c", 2))]
    done = Turns(serve, urgent=lambda _: False).run(functions)
    assert [one.result for one in done] == ["a", None, "c"]
    assert [repr(one.error) for one in done] == ["None", "ValueError('b')", "None"]
    assert served == [[0, 0, 0], [1, 1], [2]]
    assert said == ["a0", "b0", "c0", "a1", "c1", "a2"]


def test_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    together([scenes.workload("fedavg", data=DATA, lr=lr) for lr in (0.02, 0.1)], logistic)
    assert torch.equal(before, torch.random.get_rng_state())


def test_while_one_waits_for_the_disk_another_runs() -> None:
    said: list[str] = []
    others_ran = threading.Event()

    def program(name: str, own: Program) -> str:
        said.append(f"{name} begins")
        if name == "a":
            with while_waiting.get()():
                assert others_ran.wait(timeout=60)
        else:
            others_ran.set()
        said.append(f"{name} goes on")
        own.ask(name)
        return name

    done = Turns(lambda requests: requests, urgent=lambda _: False).run([partial(program, name) for name in "ab"])
    assert [one.result for one in done] == ["a", "b"]
    assert said[:2] == ["a begins", "b begins"]
    assert sorted(said[2:]) == ["a goes on", "b goes on"]
    assert done[0].waited > 0

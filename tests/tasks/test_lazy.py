"""Data sets that are read batch by batch: memory, augmentation, and readers ahead of training."""

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

import propfair
from propfair.data.base import Occasion
from propfair.engines.session import ENGINES
from propfair.errors import DataError
from propfair.federation.own import from_datasets
from tests.builders import seeded


class Noisy(Dataset[tuple[Tensor, int]]):
    """Draws from all three generators that data sets of others draw from."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        noise = [float(torch.rand(())), random.random(), float(np.random.rand())]  # noqa: NPY002
        return torch.tensor([float(place), *noise]), place % 3


def batches(occasion: Occasion | None, workers: int = 0) -> list[Tensor]:
    examples = from_datasets([Noisy()], workers=workers).examples
    return [x for x, _ in examples.read(torch.split(torch.arange(12), 4), occasion)]


def test_items_are_drawn_anew_in_each_epoch_round_and_client_and_repeat_with_the_seed() -> None:
    first, again = (torch.cat(batches(Occasion(0, 1, 0, 3))) for _ in range(2))
    assert torch.equal(first, again)
    noise = first[:, 1:]
    assert len(set(noise.flatten().tolist())) == noise.numel()
    one_batch_an_epoch = torch.cat(batches(Occasion(0, 1, 0, 1)))
    assert torch.equal(one_batch_an_epoch[:4], first[:4])  # the same epoch
    assert not torch.isclose(one_batch_an_epoch[4:, 1:], first[4:, 1:]).any()
    for other in (Occasion(1, 1, 0, 3), Occasion(0, 2, 0, 3), Occasion(0, 1, 1, 3)):
        assert not torch.isclose(torch.cat(batches(other))[:, 1:], noise).any()


def test_evaluation_reads_the_same_items_each_time_and_leaves_generators_alone() -> None:
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    assert torch.equal(torch.cat(batches(None)), torch.cat(batches(None)))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]  # type: ignore[index]  # noqa: NPY002


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # torch advises machines of one core
def test_readers_ahead_give_the_same_batches_on_one_and_two_workers() -> None:
    here = batches(Occasion(0, 1, 0, 2))
    for workers in (1, 2):
        for mine, theirs in zip(batches(Occasion(0, 1, 0, 2), workers), here, strict=True):
            assert torch.equal(mine, theirs)


def trained(workers: int, seed: int = 0, engine: Any = "inprocess") -> Tensor:
    model = seeded(lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3)))
    clients = {"ann": {"train": Noisy(), "test": Noisy()}, "bob": Noisy()}
    data = from_datasets(clients, workers=workers)
    result = propfair.train(model, data, "fedavg", rounds=2, epochs=2, batch_size=4, seed=seed, engine=engine)
    return result.model.get_parameter("1.weight").detach()


@pytest.mark.slow
def test_clients_in_one_and_two_processes_draw_the_same() -> None:
    alone = trained(0, engine=ENGINES.make("inprocess", {"threads": 1}))
    for workers in (1, 2):
        for ahead in (0, 2):
            assert torch.equal(trained(ahead, engine=ENGINES.make("processes", {"workers": workers})), alone)


def test_training_draws_anew_and_dropout_is_not_disturbed() -> None:
    assert torch.equal(trained(0), trained(0))
    assert torch.equal(trained(0), trained(1))
    assert not torch.equal(trained(0), trained(0, seed=1))


MEMORY = """
import resource, sys
import torch
from torch import nn
import propfair
from propfair.federation.own import from_datasets

class Large(torch.utils.data.Dataset):
    "A megabyte an item."
    def __init__(self, length): self.length = length
    def __len__(self): return self.length
    def __getitem__(self, place): return torch.full((250_000,), float(place)), place % 2

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 2)
    def forward(self, x): return self.layer(x.mean(1, keepdim=True) / 100)

peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
def train(length):
    data = from_datasets([Large(length), Large(length)])
    result = propfair.train(Model(), data, "fedavg", rounds=1, batch_size=8, engine="inprocess", num_classes=2)
    assert result.state == "finished", result.reason
train(30)
before = peak()
train(300)
print(peak() - before)
"""


@pytest.mark.slow
def test_memory_stays_flat_for_data_ten_times_larger_than_what_is_allowed(tmp_path: Path) -> None:
    script = tmp_path / "large.py"
    script.write_text(MEMORY)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 60  # megabytes, of 600


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ((torch.zeros(2), torch.zeros(2), 1), r"pair \(input, target\) or a dict; got list of 3"),
        ({"pixels": torch.zeros(2), "kind": 1}, "pass target=, the key of the target"),
    ],
)
def test_items_that_are_no_pairs(item: Any, said: str) -> None:
    class Strange(Dataset[Any]):
        def __len__(self) -> int:
            return 5

        def __getitem__(self, place: int) -> Any:
            return item

    with pytest.raises(DataError, match=said):
        from_datasets([Strange()]).examples.inputs(torch.arange(2))


def test_sequences_of_unequal_length_ask_for_a_collate_function() -> None:
    class Ragged(Dataset[Any]):
        def __len__(self) -> int:
            return 5

        def __getitem__(self, place: int) -> Any:
            return torch.zeros(place + 1), 0

    with pytest.raises(DataError, match="Pass collate="):
        from_datasets([Ragged()]).examples.inputs(torch.arange(2))


def test_streams_are_refused() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(())

    with pytest.raises(DataError, match="map-style"):
        from_datasets([Stream()])

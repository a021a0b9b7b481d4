"""A module as one flat vector."""

import pytest
import torch
from torch import nn

from propfair.core.params import FlatModel
from propfair.errors import ConfigError


def test_parameters_are_views_into_one_vector() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    before = nn.utils.parameters_to_vector(module.parameters()).detach().clone()
    model = FlatModel(module)
    assert torch.equal(model.params, before)

    model.load(torch.arange(len(before), dtype=torch.float32), model.buffers)

    assert module.state_dict()["0.weight"][0, 1] == 1
    assert torch.equal(nn.utils.parameters_to_vector(module.parameters()).detach(), torch.arange(len(before)).float())


def test_frozen_parameters_stay_out_and_tied_ones_are_held_once() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    module[1].bias.requires_grad_(False)
    assert len(FlatModel(module).params) == 9 + 3


def test_buffers_of_batchnorm_travel_and_counters_come_back_as_integers() -> None:
    model = FlatModel(nn.BatchNorm1d(2))
    assert model.buffers.tolist() == [0, 0, 1, 1, 0]
    model.load(model.params.clone(), torch.tensor([1.5, 2.5, 3.5, 4.5, 6.6]))
    state = model.module.state_dict()
    assert state["running_mean"].tolist() == [1.5, 2.5]
    assert state["num_batches_tracked"].item() == 7
    assert state["num_batches_tracked"].dtype == torch.int64


def test_state_dict_and_vectors_are_inverse_and_share_no_memory() -> None:
    model = FlatModel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    params, buffers = torch.rand(len(model.params)), torch.rand(5)
    buffers[-1] = 3
    state = model.state_dict(params, buffers)
    model.load(torch.zeros_like(params), torch.zeros_like(buffers))
    again = model.vectors(state)
    assert torch.equal(again[0], params)
    assert torch.equal(again[1], buffers)


def test_models_that_can_not_be_flattened_are_refused() -> None:
    with pytest.raises(ConfigError, match="no trainable parameters"):
        FlatModel(nn.ReLU())
    with pytest.raises(ConfigError, match="one dtype"):
        FlatModel(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()))
    with pytest.raises(ConfigError, match="lazy layers"):
        FlatModel(nn.LazyLinear(2))

"""The models that training starts from."""

import torch

from propfair.algorithms import Order
from propfair.core.client import run_client
from propfair.core.params import FlatModel
from propfair.runs.building import build_federation, build_model, build_workload
from propfair.runs.config import make_config
from propfair.runs.launch import run

TINY = ["model=logistic", "schedule.rounds=1", "data.num_clients=4", "local.lr=0.0", "algorithm=fedavg"]


def test_independent_starts_are_averaged_in_the_first_round() -> None:
    config = make_config({}, [*TINY, "init=independent"])
    federation = build_federation(config)
    starts = build_workload(config, federation).starts
    assert starts is not None
    model = run(config, federation=federation).model
    expected = federation.share.float() @ torch.stack([starts(client) for client in range(4)])
    torch.testing.assert_close(torch.nn.utils.parameters_to_vector(model.parameters()).detach(), expected)


def test_client_0_starts_from_the_model_that_all_share_by_default() -> None:
    config = make_config({}, [*TINY, "init=independent"])
    federation = build_federation(config)
    starts = build_workload(config, federation).starts
    assert starts is not None
    shared = FlatModel(build_model(make_config({}, TINY), federation)).params
    assert torch.equal(starts(0), shared)
    assert not torch.equal(starts(1), shared)


def test_losses_of_the_first_round_are_those_of_each_clients_own_model() -> None:
    config = make_config({}, [*TINY[:3], "algorithm=term", "init=independent", "local.batch_size=5000"])
    federation = build_federation(config)
    work = build_workload(config, federation)
    model = FlatModel(build_model(config, federation))
    start, buffers = model.params.clone(), model.buffers
    own = [run_client(model, work, 1, Order(), c, start, buffers, None)[0].first_loss for c in range(4)]
    records = run(config, federation=federation).to_pandas()
    seen = records[records.metric == "received_loss"].sort_values("client").value
    torch.testing.assert_close(torch.tensor(seen.to_numpy()).float(), torch.tensor(own), rtol=1e-5, atol=1e-6)

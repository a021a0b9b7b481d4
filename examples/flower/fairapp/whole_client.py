"""The client program of propfair as a Flower client: no loop to write, and personal models (Ditto) as well.

To use it, set `clientapp = "fairapp.whole_client:app"` in pyproject.toml.
"""

from flwr.app import Context

from fairapp.task import network, own_data
from propfair.flower import client_app


def data(context: Context) -> dict:
    train, test = own_data(context.node_config)
    return {"train": train.tensors, "test": test.tensors}


app = client_app(network, data)

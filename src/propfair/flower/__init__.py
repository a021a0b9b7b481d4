"""The same algorithms on real clients, through Flower.

On the server, `FairStrategy` takes the place of any other strategy:

    strategy = FairStrategy("propfair", model)

On the clients, one line makes an existing app fair, a mod that is given the client's training batches:

    app = ClientApp(mods=[fair_mod(my_training_batches)])

`client_app` is a whole client instead: the client program of the simulation, and the only one that trains personal
models (Ditto). See docs/flower.md.
"""

from importlib import metadata

from propfair.errors import ConfigError, MissingExtraError

OLDEST = (1, 41)  # of flwr: the strategies and mods of earlier versions differ

try:
    _found = metadata.version("flwr")
except metadata.PackageNotFoundError:
    raise MissingExtraError("propfair.flower", "flower") from None
if tuple(int(number) for number in _found.split(".")[:2]) < OLDEST:
    raise ConfigError(
        f"flwr must be at least {'.'.join(map(str, OLDEST))}; found {_found}. Run: pip install -U 'propfair[flower]'"
    )

from propfair.flower.criterion import fair_loss  # noqa: E402
from propfair.flower.limits import Limits  # noqa: E402
from propfair.flower.mods import fair_mod, fair_sampler, propfair_mod  # noqa: E402
from propfair.flower.privacy import epsilon_spent  # noqa: E402
from propfair.flower.strategy import FairStrategy  # noqa: E402
from propfair.flower.whole import client_app  # noqa: E402

__all__ = [
    "FairStrategy",
    "Limits",
    "client_app",
    "epsilon_spent",
    "fair_loss",
    "fair_mod",
    "fair_sampler",
    "propfair_mod",
]

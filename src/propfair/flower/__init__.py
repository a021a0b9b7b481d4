"""The same algorithms on real clients, through Flower.

On the server, `FairStrategy` takes the place of any other strategy:

    strategy = FairStrategy(propfair.algorithm("propfair", M=5.0), model)

On the clients, two lines make an existing app fair: the mod, and the criterion.

    app = ClientApp(mods=[fair_mod(lambda context: len(my_training_set(context)))])
    ...
    criterion = fair_loss(nn.CrossEntropyLoss(), model, train_loader)

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

from propfair.flower.client import client_app, fair_loss, fair_mod, fair_sampler  # noqa: E402
from propfair.flower.limits import Limits  # noqa: E402
from propfair.flower.strategy import FairStrategy  # noqa: E402

__all__ = ["FairStrategy", "Limits", "client_app", "fair_loss", "fair_mod", "fair_sampler"]

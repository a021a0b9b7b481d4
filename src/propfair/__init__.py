"""Fair federated learning in PyTorch: train it, measure it, certify it.

>>> import propfair
>>> propfair.algorithm("propfair", M=3.0)
PropFair(M=3.0, epsilon=0.2, variant='practical')
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from propfair.algorithms import Algorithm, Cohort, FedAvg, Needs, Order, PropFair, PropFairLoss, State, register
    from propfair.core import LocalTraining, Metric, Rounds
    from propfair.data import ArrayExamples, Examples
    from propfair.errors import (
        ConfigError,
        DataError,
        MissingExtraError,
        PropFairError,
        PropFairWarning,
        TrainingError,
        WriteError,
    )
    from propfair.federation import Federation, federate, from_datasets
    from propfair.runs import (
        Callback,
        EarlyStopping,
        Result,
        Run,
        algorithm,
        evaluate,
        load,
        read_run,
        read_runs,
        resume,
        train,
    )

# Public names by the room where they live. They are imported when first used, so that `import propfair` costs nothing.
_ROOMS = {
    "algorithms": "Algorithm Cohort FedAvg Needs Order PropFair PropFairLoss State register",
    "core": "LocalTraining Metric Rounds",
    "data": "ArrayExamples Examples",
    "errors": "ConfigError DataError MissingExtraError PropFairError PropFairWarning TrainingError WriteError",
    "federation": "Federation federate from_datasets",
    "runs": "Callback EarlyStopping Result Run algorithm evaluate load read_run read_runs resume train",
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names.split()}

__all__ = [
    "Algorithm",
    "ArrayExamples",
    "Callback",
    "Cohort",
    "ConfigError",
    "DataError",
    "EarlyStopping",
    "Examples",
    "FedAvg",
    "Federation",
    "LocalTraining",
    "Metric",
    "MissingExtraError",
    "Needs",
    "Order",
    "PropFair",
    "PropFairError",
    "PropFairLoss",
    "PropFairWarning",
    "Result",
    "Rounds",
    "Run",
    "State",
    "TrainingError",
    "WriteError",
    "algorithm",
    "evaluate",
    "federate",
    "from_datasets",
    "load",
    "read_run",
    "read_runs",
    "register",
    "resume",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'propfair' has no attribute {name!r}")
    return getattr(importlib.import_module(f"propfair.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

"""Fair federated learning in PyTorch: train it, measure it, certify it.

>>> import propfair
>>> propfair.algorithm("propfair", M=3.0)
PropFair(M=3.0, epsilon=0.2, variant='practical')
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from propfair.algorithms import Algorithm, Cohort, Needs, Order, State, register
    from propfair.algorithms.fedavg import FedAvg
    from propfair.algorithms.loss import PropFairLoss
    from propfair.algorithms.propfair import PropFair
    from propfair.core.aggregator import Rounds
    from propfair.core.client import LocalTraining
    from propfair.core.metrics import Metric
    from propfair.data import ArrayExamples, Examples
    from propfair.errors import ConfigError, DataError, PropFairError, TrainingError
    from propfair.federation.federation import Federation, federate
    from propfair.federation.own import from_datasets
    from propfair.runs.api import algorithm, train
    from propfair.runs.result import Result

# Public names and where they live. They are imported when first used, so that `import propfair` costs nothing.
_HOMES = {
    "Algorithm": "algorithms", "Cohort": "algorithms", "Needs": "algorithms", "Order": "algorithms",
    "State": "algorithms", "register": "algorithms", "FedAvg": "algorithms.fedavg", "PropFair": "algorithms.propfair",
    "algorithm": "runs.api", "train": "runs.api", "LocalTraining": "core.client",
    "ArrayExamples": "data", "Examples": "data",
    "ConfigError": "errors", "DataError": "errors", "PropFairError": "errors", "TrainingError": "errors",
    "Federation": "federation.federation", "federate": "federation.federation", "PropFairLoss": "algorithms.loss",
    "Result": "runs.result", "Rounds": "core.aggregator", "Metric": "core.metrics", "from_datasets": "federation.own",
}  # fmt: skip

__all__ = [
    "Algorithm",
    "ArrayExamples",
    "Cohort",
    "ConfigError",
    "DataError",
    "Examples",
    "FedAvg",
    "Federation",
    "LocalTraining",
    "Metric",
    "Needs",
    "Order",
    "PropFair",
    "PropFairError",
    "PropFairLoss",
    "Result",
    "Rounds",
    "State",
    "TrainingError",
    "algorithm",
    "federate",
    "from_datasets",
    "register",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'propfair' has no attribute {name!r}")
    return getattr(importlib.import_module(f"propfair.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

"""The round: the client program, the aggregator, and the messages between them. For those who write engines."""

from propfair.core.aggregator import Aggregator, Outcome, RoundPlan, Rounds
from propfair.core.client import LocalTraining, Workload, run_client
from propfair.core.evaluation import Evaluation, LossFunction
from propfair.core.messages import Block, Job, Orders, Report, Reports
from propfair.core.params import FlatModel

__all__ = [
    "Aggregator",
    "Block",
    "Evaluation",
    "FlatModel",
    "Job",
    "LocalTraining",
    "LossFunction",
    "Orders",
    "Outcome",
    "Report",
    "Reports",
    "RoundPlan",
    "Rounds",
    "Workload",
    "run_client",
]

"""The round: the client program, the aggregator, and the messages between them. For those who write engines."""

from propfair.core.aggregator import Aggregator, Outcome, RoundPlan
from propfair.core.client import LocalTraining, Workload, run_client
from propfair.core.evaluation import Evaluation
from propfair.core.messages import Block, Job, Orders, Report, Reports
from propfair.core.metrics import Metric
from propfair.core.params import FlatModel
from propfair.core.rounds import Rounds
from propfair.core.tasks import TASKS, LossFunction, Task

__all__ = [
    "TASKS",
    "Aggregator",
    "Block",
    "Evaluation",
    "FlatModel",
    "Job",
    "LocalTraining",
    "LossFunction",
    "Metric",
    "Orders",
    "Outcome",
    "Report",
    "Reports",
    "RoundPlan",
    "Rounds",
    "Task",
    "Workload",
    "run_client",
]

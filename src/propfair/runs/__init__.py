"""A run: the training that makes one, its folder and records, and what is read from them."""

from propfair.runs.api import algorithm, resume, train
from propfair.runs.callbacks import Callback, EarlyStopping, Training
from propfair.runs.certificate import Certified, Pair, Utility, certify
from propfair.runs.compare import Compared, Contest
from propfair.runs.config import RunConfig, load_config, make_config
from propfair.runs.contestant import Contestant
from propfair.runs.disagreement import disagreement_points
from propfair.runs.finetune import FineTuned, finetune
from propfair.runs.grouping import Comparison, Group, by_clients, group_runs
from propfair.runs.keeping import keep_runs
from propfair.runs.launch import ensure_run, run
from propfair.runs.loggers import Logger, MLflow, TensorBoard, WeightsAndBiases
from propfair.runs.measures import Measure, Series, summarize_clients
from propfair.runs.opening import evaluate, load
from propfair.runs.progress import Progress
from propfair.runs.reading import Problem, read_run, read_runs
from propfair.runs.result import Result
from propfair.runs.run import Clients, Environment, Run, Status
from propfair.runs.schedule import Schedule
from propfair.runs.standing import differences, gains

__all__ = [
    "Callback",
    "Certified",
    "Clients",
    "Compared",
    "Comparison",
    "Contest",
    "Contestant",
    "EarlyStopping",
    "Environment",
    "FineTuned",
    "Group",
    "Logger",
    "MLflow",
    "Measure",
    "Pair",
    "Problem",
    "Progress",
    "Result",
    "Run",
    "RunConfig",
    "Schedule",
    "Series",
    "Status",
    "TensorBoard",
    "Training",
    "Utility",
    "WeightsAndBiases",
    "algorithm",
    "by_clients",
    "certify",
    "differences",
    "disagreement_points",
    "ensure_run",
    "evaluate",
    "finetune",
    "gains",
    "group_runs",
    "keep_runs",
    "load",
    "load_config",
    "make_config",
    "read_run",
    "read_runs",
    "resume",
    "run",
    "summarize_clients",
    "train",
]

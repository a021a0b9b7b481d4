"""The theory of fair federated learning as functions of numbers: no models, no training, no files.

Everything starts from one number per client.

**How good, how equal?** `summarize` turns client values into named statistics, as the paper's tables define them:

>>> summarize([64.0, 70.0, 52.0], unit="percent").worst10
52.0

**What does an algorithm care about?** Each minimises a generalised mean of the losses, which is FedAvg with weights
that depend on the losses. `dual_weights` are those weights: PropFair looks harder at the third client, TERM less so:

>>> losses, shares = [0.5, 1.0, 2.0], [0.5, 0.3, 0.2]
>>> ProportionalMean(M=3.0).dual_weights(losses, shares, normalize=True).round(2).tolist()
[0.36, 0.27, 0.36]
>>> TiltedMean(alpha=0.1).dual_weights(losses, shares, normalize=True).round(2).tolist()
[0.48, 0.3, 0.22]

**Is a model proportionally fair?** Not if another one improves its clients by a larger share than it costs others:

>>> certificate({"other": [0.6, 0.5, 0.4]}, u_star=[0.5, 0.5, 0.5], shares=shares).verdict().words
'refuted by other: it changes the clients by +6.00 % on average (numbers taken as exact)'

**How surely?** `certificate_evidence` and `decide` take chance into account: intervals over seeds, over test examples
or over both, for all models at once. `compare_statistic` says which algorithm is ahead of which, `joining` who gains by
taking part at all.

**What would be fair?** The Nash bargaining solution, over models and their mixtures or over half-spaces
(needs `propfair[solvers]`):

>>> nash_bargaining(Hull([[0.9, 0.1], [0.2, 0.7]])).utilities.round(4).tolist()
[0.5083, 0.4357]

**When does training get there?** `fedavg_bound` and `propfair_bound` evaluate the paper's theorems and say which step
size they allow.

`afl_failure` and `nash_example` compute the paper's two small examples; `example_afl_failure` and `example_nash` draw
them as well (needs `propfair[plot]`).
"""

from propfair.fairness.bargaining import (
    BargainingError,
    BargainingSolution,
    Equivalence,
    HalfSpaces,
    Hull,
    UtilitySet,
    bargaining_weights,
    check_equivalence,
    nadir_point,
    nash_bargaining,
)
from propfair.fairness.bounds import (
    BoundWarning,
    Constants,
    ConvergenceBound,
    StepSizeLimits,
    fedavg_bound,
    propfair_bound,
)
from propfair.fairness.certificate import (
    Certificate,
    certificate,
    interval_over_both,
    interval_over_examples,
    interval_over_seeds,
)
from propfair.fairness.differences import Differences, compare_statistic, holm
from propfair.fairness.evidence import certificate_evidence, difference_evidence, statistic_evidence
from propfair.fairness.examples import afl_failure, nash_example
from propfair.fairness.intervals import Evidence, Interval
from propfair.fairness.joining import Joining, joining
from propfair.fairness.means import (
    MEANS,
    AlphaFairMean,
    ArithmeticMean,
    Constraint,
    DualMean,
    GeneralizedMean,
    HuberizedMean,
    Maximum,
    PowerMean,
    ProportionalMean,
    TiltedMean,
)
from propfair.fairness.noise import Noise
from propfair.fairness.pictures import example_afl_failure, example_nash
from propfair.fairness.statistics import (
    STATISTICS,
    ClientStatistics,
    MeanStd,
    best_fraction,
    over_seeds,
    statistic,
    summarize,
    summarize_seeds,
    worst_fraction,
)
from propfair.fairness.verdict import TOLERANCE, Verdict, decide

__all__ = [
    "MEANS",
    "STATISTICS",
    "TOLERANCE",
    "AlphaFairMean",
    "ArithmeticMean",
    "BargainingError",
    "BargainingSolution",
    "BoundWarning",
    "Certificate",
    "ClientStatistics",
    "Constants",
    "Constraint",
    "ConvergenceBound",
    "Differences",
    "DualMean",
    "Equivalence",
    "Evidence",
    "GeneralizedMean",
    "HalfSpaces",
    "HuberizedMean",
    "Hull",
    "Interval",
    "Joining",
    "Maximum",
    "MeanStd",
    "Noise",
    "PowerMean",
    "ProportionalMean",
    "StepSizeLimits",
    "TiltedMean",
    "UtilitySet",
    "Verdict",
    "afl_failure",
    "bargaining_weights",
    "best_fraction",
    "certificate",
    "certificate_evidence",
    "check_equivalence",
    "compare_statistic",
    "decide",
    "difference_evidence",
    "example_afl_failure",
    "example_nash",
    "fedavg_bound",
    "holm",
    "interval_over_both",
    "interval_over_examples",
    "interval_over_seeds",
    "joining",
    "nadir_point",
    "nash_bargaining",
    "nash_example",
    "over_seeds",
    "propfair_bound",
    "statistic",
    "statistic_evidence",
    "summarize",
    "summarize_seeds",
    "worst_fraction",
]

"""Every algorithm and the contract they share. A rule is one file here, or one class of yours; see docs/guides.

The registry `ALGORITHMS` finds them by name, also those of other packages.
"""

from propfair.algorithms.aaggff import AAggFF
from propfair.algorithms.adafed import AdaFed
from propfair.algorithms.afl import AFL
from propfair.algorithms.alpha_fair import AlphaFair
from propfair.algorithms.base import (
    ALGORITHMS,
    Advice,
    Algorithm,
    ClientId,
    Cohort,
    Drift,
    MakeOrder,
    Needs,
    Objective,
    Order,
    PastRows,
    Personal,
    Privacy,
    Reduce,
    State,
    Watch,
    make_algorithm,
    register,
)
from propfair.algorithms.ditto import Ditto
from propfair.algorithms.drfl import DRFL
from propfair.algorithms.fedavg import FedAvg
from propfair.algorithms.feddg_ga import FedDGGA
from propfair.algorithms.feddyn import FedDyn
from propfair.algorithms.fedfv import FedFV
from propfair.algorithms.fedmdfg import FedMDFG
from propfair.algorithms.fedmgda import FedMGDAPlus
from propfair.algorithms.fednova import FedNova
from propfair.algorithms.fedprox import FedProx
from propfair.algorithms.gifair import GIFAIR
from propfair.algorithms.local_only import LocalOnly
from propfair.algorithms.loss import PropFairLoss
from propfair.algorithms.nash_mtl import NashMTL
from propfair.algorithms.over import Over
from propfair.algorithms.propfair import PropFair
from propfair.algorithms.qfedavg import QFedAvg
from propfair.algorithms.qfedsgd import QFedSGD
from propfair.algorithms.scaff_pd import ScaffPD
from propfair.algorithms.scaffold import Scaffold
from propfair.algorithms.semi_vred import SemiVRed
from propfair.algorithms.superquantile import DeltaFL
from propfair.algorithms.term import TERM
from propfair.algorithms.upgrad import UPGrad

__all__ = [
    "AFL",
    "ALGORITHMS",
    "DRFL",
    "GIFAIR",
    "TERM",
    "AAggFF",
    "AdaFed",
    "Advice",
    "Algorithm",
    "AlphaFair",
    "ClientId",
    "Cohort",
    "DeltaFL",
    "Ditto",
    "Drift",
    "FedAvg",
    "FedDGGA",
    "FedDyn",
    "FedFV",
    "FedMDFG",
    "FedMGDAPlus",
    "FedNova",
    "FedProx",
    "LocalOnly",
    "MakeOrder",
    "NashMTL",
    "Needs",
    "Objective",
    "Order",
    "Over",
    "PastRows",
    "Personal",
    "Privacy",
    "PropFair",
    "PropFairLoss",
    "QFedAvg",
    "QFedSGD",
    "Reduce",
    "ScaffPD",
    "Scaffold",
    "SemiVRed",
    "State",
    "UPGrad",
    "Watch",
    "make_algorithm",
    "register",
]

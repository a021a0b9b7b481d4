"""Who holds what: partitions, splits, data of your own, saved partitions."""

from propfair.federation.federation import SPLITS, Federation, Split, federate
from propfair.federation.own import from_arrays, from_datasets, from_table
from propfair.federation.partition import (
    PARTITIONERS,
    Dirichlet,
    DirichletQuantity,
    Iid,
    Natural,
    Partition,
    Partitioner,
    Shards,
)
from propfair.federation.ragged import Ragged
from propfair.federation.saved import load_partition, save_partition
from propfair.federation.split import Splits, Splitter

__all__ = [
    "PARTITIONERS",
    "SPLITS",
    "Dirichlet",
    "DirichletQuantity",
    "Federation",
    "Iid",
    "Natural",
    "Partition",
    "Partitioner",
    "Ragged",
    "Shards",
    "Split",
    "Splits",
    "Splitter",
    "federate",
    "from_arrays",
    "from_datasets",
    "from_table",
    "load_partition",
    "save_partition",
]

"""Who holds what: partitions, splits, data of your own, saved partitions."""

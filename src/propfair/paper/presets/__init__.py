"""One TOML file for each table and figure of the paper, with its numbers, and one for each of its experiments."""

"""A Flower app for the tests: every task of tests/tasks, one after the other."""

"""Speed and memory of propfair against a bare training loop and against other simulators: `python -m benchmarks`."""

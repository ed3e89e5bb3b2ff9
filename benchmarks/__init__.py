"""Ours against installed peers: `python -m benchmarks` (see `benchmarks/__main__.py`)."""

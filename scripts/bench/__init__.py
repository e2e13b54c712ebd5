"""Benchmark: sweeps of load on an OpenAI-compatible server, their figures, and their reports.

`scripts.bench.sweep.run_sweep` is the entry for programs, `python -m scripts.bench` for people and workflows.
"""

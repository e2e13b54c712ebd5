"""The benchmark: sweeps of load against an OpenAI-compatible server, their arithmetic, and their reports.

`scripts.bench.sweep.run_sweep` is the entry for programs; `python -m scripts.bench` for people and CI.
"""

"""Load tests of OpenAI-compatible servers: load sweeps, their metrics, and their reports.

Programs call `loadtest.sweep.run_sweep`; users run `python -m loadtest`.
"""

"""Load tests of OpenAI-compatible servers: sweeps of load, their figures, and their reports.

`loadtest.sweep.run_sweep` is the entry for programs, `python -m loadtest` for people.
"""

"""Smoke checks of a served model: health, answers, features, options and speed, each with its threshold.

`scripts.smoke.run.run_smoke` is the entry for programs, `python -m scripts.smoke` for people and workflows.
"""

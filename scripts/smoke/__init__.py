"""Smoke checks of a model server: health, responses, features, options and speed, each with a threshold.

Programs call `scripts.smoke.checks.run_smoke`; users and workflows run `gemma smoke`.
"""

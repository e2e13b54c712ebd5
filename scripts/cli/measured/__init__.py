"""Measured results of deployments compared with the plan: `results/STACK.measured.json`, one file per stack.

`scripts.smoke` and `scripts.bench` add to the file; `scripts.plan --measured` reads it.
"""

"""What deployments showed beside what was planned: `results/STACK.measured.json`, one file for each stack.

`scripts.smoke` and `scripts.bench` add to the file, `scripts.plan --measured` reads it.
"""

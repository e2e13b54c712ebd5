"""Predicts whether a deployment fits, its start time, its cost and its flags before it costs anything.

Pure: without network, clock or I/O except its data files (gemma_serving/planning/data/*.json), each read once at first use.
`planner.plan(Question().changed(...))` takes about a millisecond.
"""

"""Processes on this machine for the simulated cloud: revisions, fronts, machines and the commands on them."""

"""Loads beyond fixed lengths: datasets, traces, sessions, length distributions, shared prefixes and images."""

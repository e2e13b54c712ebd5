"""Loads beyond fixed lengths: datasets, sessions, length distributions, shared prefixes and images."""

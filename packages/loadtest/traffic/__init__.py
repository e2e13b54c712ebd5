"""Loads beyond fixed lengths: sessions, length distributions, shared prefixes and images."""

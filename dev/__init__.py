"""Rooms of those who change this project: page generators and releases, judges, and tools of the environment."""

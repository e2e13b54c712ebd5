"""Measurements of speed, as ratios within one run; never part of the tests."""

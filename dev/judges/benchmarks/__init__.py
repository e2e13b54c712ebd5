"""Speed measurements as ratios within one run. Never part of the tests."""

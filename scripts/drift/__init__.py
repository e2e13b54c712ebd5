"""Differences between what was deployed and what is there, and the one issue that tells of them."""

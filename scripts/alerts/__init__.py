"""Alerts of a stack that ring now."""

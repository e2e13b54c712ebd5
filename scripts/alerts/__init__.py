"""Alerts of a stack that fire now."""

"""Clocks of the demo."""

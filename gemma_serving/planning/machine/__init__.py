"""Accelerators, the platforms that offer them, and devices by their specifications."""

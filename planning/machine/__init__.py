"""Accelerators, the platforms that rent them, and devices by their figures."""

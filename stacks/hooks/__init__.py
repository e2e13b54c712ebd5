"""Calls to Google while the engine works: check staged weights, read the traffic split, explain a failed start."""

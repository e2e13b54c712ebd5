"""Workshops of the authors: accuracy, measurements, the oracle, the nightly run, pages, the demo. No other room imports them."""

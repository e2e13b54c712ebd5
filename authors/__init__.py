"""Tools for the authors: accuracy, measurements, the oracle, the nightly run, pages, the demo. No other package imports them."""

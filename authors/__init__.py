"""Tools for the authors: accuracy, measurements, the comparison with a real vLLM, the nightly run, pages, the demo. No other package imports them."""

"""Tools for the authors: generated pages, the demo, releases. Only the judges import them."""

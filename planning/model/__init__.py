"""Models by their architecture, and what loads where."""

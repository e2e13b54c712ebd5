"""Models by architecture, and which precision loads where."""

"""Rules of what a server exposes and what it loads."""

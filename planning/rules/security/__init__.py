"""Rules for what a server exposes and loads."""

"""A terminal that a command writes to, and what moves on it while something is slow."""

"""Recordings of what a command and Google said to each other: made by a proxy, compared with the local cloud."""

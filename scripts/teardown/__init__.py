"""Destroy a stack and delete leaked resources through Google's APIs."""

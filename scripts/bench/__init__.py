"""Benchmark of a stack's server: `packages/loadtest` with the stack's address, credentials, price and plan."""

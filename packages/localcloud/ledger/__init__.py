"""The ledger: what the local cloud assumes about Google, as data with its sources and tests. docs/authors/assumptions.md shows it."""

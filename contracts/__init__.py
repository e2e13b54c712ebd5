"""What the rooms promise one another: one frozen type for each contract, used by its writer and by every reader.

Standard library only. Every room may import this one, except `localcloud` and `provider`, which stand on their own; tests compare
their words with these. docs/authors/contracts.md is generated from this package.
"""

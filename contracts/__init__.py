"""Contracts between packages: one frozen type per contract, used by its writer and by every reader.

Standard library only. Every package may import this one, except `localcloud` and `provider`, which are independent. Tests compare
their texts with these. docs/authors/contracts.md is generated from this package.
"""

"""The ledger: the local cloud's assumptions about Google, as data with sources and tests. docs/authors/assumptions.md counts them."""

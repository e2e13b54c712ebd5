"""The ledger: the local cloud's assumptions about Google, as data with sources and tests. dev/docs/assumptions.md counts them."""

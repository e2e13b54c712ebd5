"""`localcloud try`: send the ledger's requests to a real project and judge Google's answers."""

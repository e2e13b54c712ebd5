"""`localcloud try`: send the ledger's requests to a real project and record Google's answers."""

"""`localcloud try`: send what the ledger assumes to a real project, and write down what Google answers."""

"""What commands share about one stack: its settings, its plan and price, its server, and the copy that the engine runs in."""

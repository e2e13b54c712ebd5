"""What a program asks Google while the engine works: whether weights are staged, who gets the traffic, why a server did not start."""

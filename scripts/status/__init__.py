"""What every stack is doing now: capacity, phase, health, load, cost, drift, and the next command."""
